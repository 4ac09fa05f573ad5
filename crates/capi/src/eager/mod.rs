//! Eager execution (`tensorflow/c/eager/c_api.h`, `c_api_experimental.h`).

mod attrs;
mod cancellation;
mod cluster;
mod context;
mod custom_device;
mod debug;
mod device;
mod execute;
mod executor;
mod functions;
mod handle;
mod infer_shapes;
mod monitoring;
mod op;
mod packed;
#[cfg(test)]
mod tests;

pub use attrs::*;
pub use cancellation::*;
pub use cluster::*;
pub use context::*;
pub use custom_device::*;
pub use debug::*;
pub use execute::*;
pub use executor::*;
pub use functions::*;
pub use handle::*;
pub use infer_shapes::*;
pub use monitoring::*;
pub use op::*;
pub use packed::*;
