//! [`Resources`]: what outlives a step. Variables, tables, queues.

use ferroflow_base::{Result, Status, already_exists, not_found};
use rustc_hash::FxHashMap;
use std::any::{Any, TypeId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The container of resources whose op names none.
pub const DEFAULT_CONTAINER: &str = "localhost";

type Shared = Arc<dyn Any + Send + Sync>;

/// Named, typed resources in named containers, as in TensorFlow's resource manager.
///
/// Resources of different types may have the same name.
///
/// ```
/// use ferroflow_opdef::{DEFAULT_CONTAINER, Resources};
/// let resources = Resources::default();
/// let a = resources.lookup_or_create(DEFAULT_CONTAINER, "n", || Ok(7u32)).unwrap();
/// let b = resources.lookup::<u32>(DEFAULT_CONTAINER, "n").unwrap();
/// assert!(std::sync::Arc::ptr_eq(&a, &b));
/// assert!(resources.lookup::<i64>(DEFAULT_CONTAINER, "n").is_err());
/// ```
pub struct Resources {
    id: u64,
    containers: Mutex<FxHashMap<String, Container>>,
}

type Container = FxHashMap<(TypeId, String), Shared>;

impl Default for Resources {
    fn default() -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Resources {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            containers: Mutex::default(),
        }
    }
}

impl Resources {
    /// A number that no other of this process has: kernels remember by it where a resource that
    /// they looked up came from.
    pub fn id(&self) -> u64 {
        self.id
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, Container>> {
        self.containers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The resource of this type and name; NOT_FOUND when there is none.
    pub fn lookup<T: Any + Send + Sync>(&self, container: &str, name: &str) -> Result<Arc<T>> {
        let containers = self.lock();
        let found = containers
            .get(container)
            .and_then(|c| c.get(&(TypeId::of::<T>(), name.to_string())))
            .cloned();
        found
            .and_then(|shared| shared.downcast().ok())
            .ok_or_else(|| missing(container, name))
    }

    /// The resource of this type and name, made first if there is none.
    ///
    /// `make` runs under the lock of all containers and must not come back here.
    pub fn lookup_or_create<T: Any + Send + Sync>(
        &self,
        container: &str,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut containers = self.lock();
        let key = (TypeId::of::<T>(), name.to_string());
        let in_container = containers.entry(container.to_string()).or_default();
        if let Some(shared) = in_container.get(&key).cloned()
            && let Ok(found) = shared.downcast()
        {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        in_container.insert(key, made.clone());
        Ok(made)
    }

    /// Enters a resource under a new name; ALREADY_EXISTS when the name is taken.
    pub fn create<T: Any + Send + Sync>(
        &self,
        container: &str,
        name: &str,
        value: Arc<T>,
    ) -> Result<()> {
        let mut containers = self.lock();
        let in_container = containers.entry(container.to_string()).or_default();
        let key = (TypeId::of::<T>(), name.to_string());
        if in_container.contains_key(&key) {
            return Err(already_exists!("Resource {container}/{name} exists"));
        }
        in_container.insert(key, value);
        Ok(())
    }

    /// Removes a resource; whoever holds it keeps it.
    pub fn remove<T: Any + Send + Sync>(&self, container: &str, name: &str) -> Result<()> {
        let mut containers = self.lock();
        let removed = containers
            .get_mut(container)
            .and_then(|c| c.remove(&(TypeId::of::<T>(), name.to_string())));
        removed.map(drop).ok_or_else(|| missing(container, name))
    }

    /// Forgets everything in a container.
    pub fn clear(&self, container: &str) {
        self.lock().remove(container);
    }
}

#[cold]
fn missing(container: &str, name: &str) -> Status {
    not_found!("Resource {container}/{name} does not exist")
}
