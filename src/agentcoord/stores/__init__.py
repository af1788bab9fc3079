"""Where records live. Stores are strangers to each other; `opening` alone knows them all."""
