"""The cases, one module per family; each has cases(), a generator of Case."""
