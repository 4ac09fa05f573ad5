//! Shared by the tests of several rooms: golden rows, cases and tensors as JSON, temporary
//! folders, memory, repeatable random numbers, a stand-in for a GPU's driver.
//!
//! A dev-dependency only. Tests fail by panicking, so these functions may panic.
#![forbid(unsafe_code)]

pub mod cases;
pub mod driver;
pub mod folder;
pub mod memory;
pub mod op;
pub mod random;
pub mod rows;
pub mod tensors;
