"""The cases, one module a family; each has cases(), a generator of Case."""
