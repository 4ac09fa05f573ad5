//! Programs of JAX and made-up ones, whole and damaged.

mod artifacts;
mod damaged;
mod made;
