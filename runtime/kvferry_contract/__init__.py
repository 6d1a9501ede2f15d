"""What operator and runtime must agree on: names, ports, paths, configuration, transfer parameters.

Standard library only, so that it can be imported in any engine image.
"""
