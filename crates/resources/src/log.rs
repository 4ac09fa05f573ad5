//! Listeners of what programs print (TensorFlow: `core/platform/logging.cc`, `RegisterListener`).

use std::sync::{PoisonError, RwLock};

type Listener = Box<dyn Fn(&[u8]) + Send + Sync>;

static LISTENERS: RwLock<Vec<Listener>> = RwLock::new(Vec::new());

/// Passes what PrintV2 prints to `listener` from now on, instead of to the standard streams.
pub fn listen_to_prints(listener: impl Fn(&[u8]) + Send + Sync + 'static) {
    let mut listeners = LISTENERS.write().unwrap_or_else(PoisonError::into_inner);
    listeners.push(Box::new(listener));
}

/// Passes a text to the listeners; returns whether there are any.
pub fn tell_listeners(text: &[u8]) -> bool {
    let listeners = LISTENERS.read().unwrap_or_else(PoisonError::into_inner);
    listeners.iter().for_each(|listener| listener(text));
    !listeners.is_empty()
}
