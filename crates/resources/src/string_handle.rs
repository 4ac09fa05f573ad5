//! String handles of old ops: a container and a name.
//!
//! The name's bytes own the resource, so that it lives as long as a tensor holds the handle.

use ferroflow_base::{Result, invalid_argument, not_found};
use ferroflow_opdef::ShapeCtx;
use ferroflow_tensor::{Bytes, PartialShape, Tensor};
use rustc_hash::FxHashMap;
use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

type Shared = dyn Any + Send + Sync;
type HandleTable = FxHashMap<Vec<u8>, Weak<Shared>>;

fn table() -> MutexGuard<'static, HandleTable> {
    static TABLE: LazyLock<Mutex<HandleTable>> = LazyLock::new(Mutex::default);
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Owner {
    name: Vec<u8>,
    _value: Arc<Shared>,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.name
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        table().remove(&self.name);
    }
}

/// Returns the shape of such a handle.
///
/// # Errors
/// None; the type is that of shape functions.
pub fn handle_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::of([Some(2)]));
    Ok(())
}

/// Returns a handle of `value`; the name gets a unique number.
///
/// # Errors
/// Those of [`Tensor::from_strings`], which do not occur here.
pub fn string_handle(container: &str, name: &str, value: Arc<Shared>) -> Result<Tensor> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{name}_{number}").into_bytes();
    table().insert(name.clone(), Arc::downgrade(&value));
    let owner = Owner {
        name,
        _value: value,
    };
    let parts = vec![
        Bytes::copy_from_slice(container.as_bytes()),
        Bytes::from_owner(owner),
    ];
    Tensor::from_strings([2], parts)
}

/// Returns the resource that a handle names.
///
/// # Errors
/// INVALID_ARGUMENT if the tensor is not a handle; NOT_FOUND if its resource does not exist.
pub fn named<T: Any + Send + Sync>(handle: &Tensor, what: &str) -> Result<Arc<T>> {
    let [container, name] = handle.strings()? else {
        let shape = handle.shape();
        return Err(match what {
            "TensorArray" => invalid_argument!(
                "Tensor array handle must be 2-element vector, but had shape: {shape}"
            ),
            _ => invalid_argument!(
                "{what} handle must be two-element vector, but had shape: {shape}"
            ),
        });
    };
    let found = table().get(&name[..]).and_then(Weak::upgrade);
    found
        .and_then(|value| value.downcast().ok())
        .ok_or_else(|| {
            let [container, name] = [container, name].map(|s| String::from_utf8_lossy(s));
            not_found!(
                "Container {container} does not exist. (Could not find {what}: {container}/{name})"
            )
        })
}
