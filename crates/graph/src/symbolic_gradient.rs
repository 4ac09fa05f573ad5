//! The functions that SymbolicGradient nodes call.

use crate::{Function, GraphBuilder, Library};
use ferroflow_opdef::Registry;

/// Adds the gradients of functions.
pub(crate) fn with_gradients(
    library: Library,
    differentiated: Vec<(String, Function)>,
    registry: &Registry,
) -> Library {
    let mut b = GraphBuilder::new(registry);
    b.library = library;
    for (key, function) in differentiated {
        let made = b.gradient_function(function);
        match made.and_then(|made| b.make_gradient_functions().map(|()| made)) {
            Ok(made) => b.library.insert(&key, made),
            Err(e) => b.library.insert_bad(&key, &e),
        }
    }
    b.library
}
