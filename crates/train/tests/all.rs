//! The integration tests of the crate, in one program: each would contain the whole engine.

mod cluster;
mod examples;
#[path = "training/plane.rs"]
mod plane;
#[path = "training/tasks.rs"]
mod tasks;
mod train;
mod training_checks;
mod training_refusals;
mod training_rules;
#[path = "training/written.rs"]
mod written;
