//! [`Resources`]: variables, tables, queues and other state that outlives a step.

use crate::{Collectives, DatasetGraphs, FunctionTasks};
use ferroflow_base::{Result, Status, already_exists, not_found};
use rustc_hash::{FxHashMap, FxHashSet};
use std::any::{Any, TypeId};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// The container of resources whose op does not name one, except on tasks of clusters.
pub const DEFAULT_CONTAINER: &str = "localhost";

type Shared = Arc<dyn Any + Send + Sync>;

/// Named, typed resources in named containers, as in TensorFlow's resource manager.
///
/// Resources of different types may have the same name. An empty name of a container is that of the default
/// container.
///
/// ```
/// use ferroflow_opdef::{DEFAULT_CONTAINER, Resources};
/// let resources = Resources::default();
/// let a = resources.lookup_or_create(DEFAULT_CONTAINER, "n", || Ok(7u32)).unwrap();
/// let b = resources.lookup::<u32>(DEFAULT_CONTAINER, "n").unwrap();
/// assert!(std::sync::Arc::ptr_eq(&a, &b));
/// assert!(resources.lookup::<i64>(DEFAULT_CONTAINER, "n").is_err());
/// ```
/// Clones refer to the same resources.
#[derive(Clone)]
pub struct Resources {
    containers: Arc<Containers>,
    own: Arc<SessionState>,
}

impl Default for Resources {
    fn default() -> Self {
        Resources::with_default_container(DEFAULT_CONTAINER)
    }
}

/// State of one session; sessions may share containers.
struct SessionState {
    id: u64,
    /// Resources that only this session sees.
    hidden: Mutex<Container>,
    containers: Arc<Containers>,
    /// Generated names that this session put into containers.
    private: Mutex<FxHashSet<(String, TypeId, String)>>,
    services: Services,
}

/// What a session's kernels use of its engine and its server; sessions forked from it have the same.
#[derive(Clone, Default)]
struct Services {
    collectives: OnceLock<Arc<dyn Collectives>>,
    dataset_graphs: OnceLock<Arc<dyn DatasetGraphs>>,
    function_tasks: OnceLock<Arc<dyn FunctionTasks>>,
}

impl SessionState {
    fn beside(containers: &Arc<Containers>, services: Services) -> Arc<SessionState> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Arc::new(SessionState {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            hidden: Mutex::default(),
            containers: containers.clone(),
            private: Mutex::default(),
            services,
        })
    }
}

impl Drop for SessionState {
    fn drop(&mut self) {
        let private = self
            .private
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        let mut containers = self.containers.lock();
        for (container, ty, name) in private.drain() {
            let container = containers.get_mut(&container);
            gone.push(container.and_then(|c| c.remove(&(ty, name))));
        }
        // Values are dropped without the lock: they may be large.
        drop(containers);
    }
}

type Container = FxHashMap<(TypeId, String), Shared>;

struct Containers {
    id: u64,
    /// The name of the default container.
    default: Box<str>,
    by_name: Mutex<FxHashMap<String, Container>>,
}

impl Containers {
    fn new(default: &str) -> Self {
        static NEXT_ID: AtomicU64 = AtomicU64::new(0);
        Containers {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            default: default.into(),
            by_name: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, Container>> {
        self.by_name.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the value of a key, created if there is none.
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
    /// Returns no resources, in containers of which the default one has this name: the job, on a task of a
    /// cluster (TensorFlow's `ResourceMgr` of a device).
    ///
    /// ```
    /// use ferroflow_opdef::Resources;
    /// let resources = Resources::with_default_container("ps");
    /// resources.lookup_or_create("", "n", || Ok(7u32)).unwrap();
    /// assert_eq!(*resources.lookup::<u32>("ps", "n").unwrap(), 7);
    /// ```
    pub fn with_default_container(name: &str) -> Resources {
        let containers = Arc::new(Containers::new(name));
        let own = SessionState::beside(&containers, Services::default());
        Resources { containers, own }
    }

    /// Returns the container that an attr names: the default one if it is empty.
    pub fn container<'a>(&'a self, attr: &'a str) -> &'a str {
        match attr {
            "" => &self.containers.default,
            name => name,
        }
    }

    pub(crate) fn dataset_graphs_slot(&self) -> &OnceLock<Arc<dyn DatasetGraphs>> {
        &self.own.services.dataset_graphs
    }

    pub(crate) fn collectives_slot(&self) -> &OnceLock<Arc<dyn Collectives>> {
        &self.own.services.collectives
    }

    pub(crate) fn function_tasks_slot(&self) -> &OnceLock<Arc<dyn FunctionTasks>> {
        &self.own.services.function_tasks
    }

    /// Returns the resources of a new session that shares all containers.
    ///
    /// ```
    /// use ferroflow_opdef::Resources;
    /// let first = Resources::default();
    /// let second = first.fork_session();
    /// first.lookup_or_create("box", "n", || Ok(7u32)).unwrap();
    /// assert_eq!(*second.lookup::<u32>("box", "n").unwrap(), 7);
    /// assert_eq!(*first.session_local("n", || Ok(1u32)).unwrap(), 1);
    /// assert_eq!(*second.session_local("n", || Ok(2u32)).unwrap(), 2);
    /// ```
    pub fn fork_session(&self) -> Resources {
        let services = self.own.services.clone();
        Resources {
            containers: self.containers.clone(),
            own: SessionState::beside(&self.containers, services),
        }
    }

    /// Returns the resource of this type and name that is local to the session, created if needed.
    ///
    /// `make` runs under a lock and must not call back.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn session_local<T: Any + Send + Sync>(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let own = &self.own.hidden;
        let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
        find_or_make(&mut own, name, make)
    }

    /// Returns the resource of a node without a shared name, created if needed, and its generated
    /// name, such as `_3_node`. It is dropped with the session (TensorFlow's
    /// `ContainerInfo::resource_is_private_to_kernel`).
    ///
    /// ```
    /// use ferroflow_opdef::Resources;
    /// let first = Resources::default();
    /// let second = first.fork_session();
    /// let (name, value) = first.private_to_kernel("box", "q", |_| Ok(7u32)).unwrap();
    /// assert!(name.starts_with('_') && name.ends_with("_q") && *value == 7);
    /// assert_eq!(*second.private_to_kernel("box", "q", |_| Ok(8u32)).unwrap().1, 8);
    /// assert_eq!(*second.lookup::<u32>("box", &name).unwrap(), 7);
    /// drop(first);
    /// assert!(second.lookup::<u32>("box", &name).is_err());
    /// ```
    ///
    /// `make`, which gets the name, runs under the lock of all containers and must not call back.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn private_to_kernel<T: Any + Send + Sync>(
        &self,
        container: &str,
        node: &str,
        make: impl FnOnce(&str) -> Result<T>,
    ) -> Result<(String, Arc<T>)> {
        let container = self.container(container);
        let name = format!("_{}_{node}", self.own.id);
        let found = self.lookup_or_create(container, &name, || make(&name))?;
        let key = (container.to_string(), TypeId::of::<T>(), name.clone());
        let private = self.own.private.lock();
        private.unwrap_or_else(PoisonError::into_inner).insert(key);
        Ok((name, found))
    }

    /// Returns the session's number, unique in this process.
    pub fn session_id(&self) -> u64 {
        self.own.id
    }

    /// Returns the number of these containers, unique in this process: kernels use it to tell where
    /// a cached resource is from.
    pub fn id(&self) -> u64 {
        self.containers.id
    }

    fn lock(&self) -> MutexGuard<'_, FxHashMap<String, Container>> {
        self.containers.lock()
    }

    /// Returns the resource of this type and name.
    ///
    /// # Errors
    /// NOT_FOUND if there is none.
    pub fn lookup<T: Any + Send + Sync>(&self, container: &str, name: &str) -> Result<Arc<T>> {
        let container = self.container(container);
        let containers = self.lock();
        let found = containers
            .get(container)
            .and_then(|c| c.get(&(TypeId::of::<T>(), name.to_string())))
            .cloned();
        found
            .and_then(|shared| shared.downcast().ok())
            .ok_or_else(|| missing(container, name))
    }

    /// Returns the resource of this type and name, created if there is none.
    ///
    /// `make` runs under the lock of all containers and must not call back.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn lookup_or_create<T: Any + Send + Sync>(
        &self,
        container: &str,
        name: &str,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let container = self.container(container);
        let mut containers = self.lock();
        let in_container = containers.entry(container.to_string()).or_default();
        find_or_make(in_container, name, make)
    }

    /// Adds a resource under a new name.
    ///
    /// # Errors
    /// ALREADY_EXISTS if the name is taken.
    pub fn create<T: Any + Send + Sync>(
        &self,
        container: &str,
        name: &str,
        value: Arc<T>,
    ) -> Result<()> {
        let container = self.container(container);
        let mut containers = self.lock();
        let in_container = containers.entry(container.to_string()).or_default();
        let key = (TypeId::of::<T>(), name.to_string());
        if in_container.contains_key(&key) {
            return Err(already_exists!("Resource {container}/{name} exists"));
        }
        in_container.insert(key, value);
        Ok(())
    }

    /// Returns whether a container was ever filled by resources that `counts` accepts, even if they
    /// were removed since.
    pub fn is_container(
        &self,
        container: &str,
        counts: impl Fn(&(dyn Any + Send + Sync)) -> bool,
    ) -> bool {
        let containers = self.lock();
        let found = containers.get(self.container(container));
        found.is_some_and(|c| c.is_empty() || c.values().any(|value| counts(&**value)))
    }

    /// Removes a resource; its other owners keep it.
    ///
    /// # Errors
    /// NOT_FOUND if there is none.
    pub fn remove<T: Any + Send + Sync>(&self, container: &str, name: &str) -> Result<()> {
        let container = self.container(container);
        let mut containers = self.lock();
        let removed = containers
            .get_mut(container)
            .and_then(|c| c.remove(&(TypeId::of::<T>(), name.to_string())));
        removed.map(drop).ok_or_else(|| missing(container, name))
    }

    /// Removes all resources of a container.
    pub fn clear(&self, container: &str) {
        self.lock().remove(self.container(container));
    }
}

#[cold]
fn missing(container: &str, name: &str) -> Status {
    not_found!("Resource {container}/{name} does not exist")
}
