"""The fleet's state server: HTTP in front of a database, and nothing that has to be remembered besides (D11)."""
