"""Timelines of transfers: recorded in the processes that move them, written as Chrome traces, drawn, summed up."""
