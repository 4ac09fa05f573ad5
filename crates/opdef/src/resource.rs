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
/// Clones are the same resources.
#[derive(Clone, Default)]
pub struct Resources {
    containers: Arc<Containers>,
    /// What no other session sees, whoever shares the containers.
    own: Arc<Mutex<Container>>,
}

type Container = FxHashMap<(TypeId, String), Shared>;

struct Containers {
    id: u64,
    by_name: Mutex<FxHashMap<String, Container>>,
}

impl Default for Containers {
    fn default() -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Containers {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            by_name: Mutex::default(),
        }
    }
}

/// The value of a key, made first if there is none.
fn find_or_make<T: Any + Send + Sync>(
    container: &mut Container,
    name: &str,
    make: impl FnOnce() -> Result<T>,
) -> Result<Arc<T>> {
    let key = (TypeId::of::<T>(), name.to_string());
    if let Some(shared) = container.get(&key).cloned()
        && let Ok(found) = shared.downcast()
    {
        return Ok(found);
    }
    let made = Arc::new(make()?);
    container.insert(key, made.clone());
    Ok(made)
}

impl Resources {
    /// Those of another session, which shares all containers.
    ///
    /// ```
    /// use ferroflow_opdef::Resources;
    /// let first = Resources::default();
    /// let second = first.of_another_session();
    /// first.lookup_or_create("box", "n", || Ok(7u32)).unwrap();
    /// assert_eq!(*second.lookup::<u32>("box", "n").unwrap(), 7);
    /// assert_eq!(*first.own("n", || Ok(1u32)).unwrap(), 1);
    /// assert_eq!(*second.own("n", || Ok(2u32)).unwrap(), 2);
    /// ```
    pub fn of_another_session(&self) -> Resources {
        Resources {
            containers: self.containers.clone(),
            own: Arc::default(),
        }
    }

    /// The session's own resource of this type and name, made first if there is none.
    ///
    /// `make` runs under a lock and must not come back here.
    pub fn own<T: Any + Send + Sync>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        find_or_make(&mut own, name, make)
    }

    /// A number that no other containers of this process have: kernels remember by it where a
    /// resource that they looked up came from.
    pub fn id(&self) -> u64 {
        self.containers.id
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, Container>> {
        let by_name = self.containers.by_name.lock();
        by_name.unwrap_or_else(PoisonError::into_inner)
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
        let in_container = containers.entry(container.to_string()).or_default();
        find_or_make(in_container, name, make)
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
