"""Methods `sparse50` and `sparse75`: whole tokens are left out of the transfer and of decode's cache."""
