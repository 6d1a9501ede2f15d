"""What `auto` knows and decides: how fast a link and the methods are, and from that how a transfer goes best. Pure."""
