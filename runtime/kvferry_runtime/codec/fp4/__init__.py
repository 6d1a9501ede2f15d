"""Method `fp4`: four bits an element, scales for 16 of them."""
