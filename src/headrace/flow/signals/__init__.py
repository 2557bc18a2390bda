"""Signals between the stages of a flow, and the transports that carry them."""
