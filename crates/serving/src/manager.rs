//! [`ModelManager`]: which versions of which models are loaded.
//!
//! Sources say which versions a model should have. Missing versions are loaded and warmed on threads of their own; a
//! version is removed once another one is available, so that a model never becomes unavailable by a change. Requests
//! look versions up in a table that is replaced as a whole; a removed version is freed when its last request ends.

use crate::cache::files;
use crate::config::ModelSource;
use crate::loads::Loads;
use crate::metrics::Metrics;
use crate::servable::{LoadOptions, Servable};
use crate::source::aspired;
use crate::step::contained;
use crate::warmup;
use ferroflow_base::{
    Result, Status, failed_precondition, invalid_argument, not_found, ordered_map,
    resource_exhausted,
};
use ferroflow_model::proto::serving::model_version_status::State;
use ferroflow_model::proto::serving::{ModelSpec, model_spec::VersionChoice};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Versions of a model that are over and still reported.
const MAX_ENDED: usize = 32;

/// Options of the manager.
#[derive(Clone)]
pub struct ManagerOptions {
    /// How versions are opened.
    pub load: LoadOptions,
    /// How often a version that failed is tried again.
    pub max_retries: u32,
    /// How long after a failure it is tried again; it is also tried when its files have changed.
    pub retry_interval: Duration,
    /// Versions that are loaded at the same time.
    pub load_threads: usize,
    /// Steps with zeros that warm up each version, besides its recorded requests.
    pub warmup_steps: usize,
    /// How often each recorded request is replayed; 0 ignores them.
    pub warmup_replays: usize,
    /// Most bytes of all models together, estimated by the sizes of their files.
    pub memory_budget: Option<u64>,
    /// Whether labels may name versions that are not available.
    pub labels_need_no_version: bool,
}

/// The state of a version, as `GetModelStatus` reports it.
#[derive(Clone, Debug)]
pub struct VersionStatus {
    /// The number of the version.
    pub version: i64,
    /// Its state.
    pub state: State,
    /// Why it failed, if it did.
    pub error: Option<Status>,
}

/// The models of a server.
pub struct ModelManager {
    options: ManagerOptions,
    state: Mutex<BTreeMap<String, Model>>,
    /// Held while the models are replaced.
    replacing: Mutex<()>,
    /// Notified when a version has been loaded or unloaded.
    changed: Condvar,
    loads: Loads,
    table: RwLock<Arc<Table>>,
    metrics: Arc<Metrics>,
}

/// What requests look up.
type Table = HashMap<String, Entry>;

/// A version that no request finds any more.
type Removed = (i64, Arc<Servable>);

#[derive(Default)]
struct Entry {
    versions: BTreeMap<i64, Arc<Servable>>,
    labels: BTreeMap<String, i64>,
}

struct Model {
    source: ModelSource,
    versions: BTreeMap<i64, Version>,
    /// Whether the source still lists the model.
    is_wanted: bool,
}

struct Version {
    path: PathBuf,
    state: State,
    error: Option<Status>,
    servable: Option<Arc<Servable>>,
    is_aspired: bool,
    /// Estimate of its memory, bytes.
    bytes: u64,
    attempts: u32,
    tried: Instant,
    /// The files when it was last tried.
    files: Vec<(PathBuf, u64, u128)>,
}

impl Version {
    fn new(path: PathBuf) -> Version {
        Version {
            path,
            state: State::Start,
            error: None,
            servable: None,
            is_aspired: true,
            bytes: 0,
            attempts: 0,
            tried: Instant::now(),
            files: Vec::new(),
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ModelManager {
    /// Returns a manager without models.
    pub fn new(options: ManagerOptions, metrics: Arc<Metrics>) -> Arc<ModelManager> {
        Arc::new(ModelManager {
            loads: Loads::new(options.load_threads),
            options,
            state: Mutex::default(),
            replacing: Mutex::default(),
            changed: Condvar::new(),
            table: RwLock::default(),
            metrics,
        })
    }

    /// Replaces the models that are served, waits until new ones are loaded, then assigns the labels.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if a label names a version that is not available; UNKNOWN if a model that was not
    /// served before has no version that can be loaded.
    pub fn set_models(self: &Arc<Self>, sources: Vec<ModelSource>) -> Result<()> {
        let _alone = lock(&self.replacing);
        let mut added = Vec::new();
        {
            let mut models = lock(&self.state);
            for model in models.values_mut() {
                model.is_wanted = sources.iter().any(|s| s.name == model.source.name);
            }
            for source in &sources {
                let labels = BTreeMap::new();
                match models.get_mut(&source.name) {
                    Some(model) => {
                        let labels = std::mem::take(&mut model.source.labels);
                        model.source = ModelSource {
                            labels,
                            ..source.clone()
                        };
                    }
                    None => {
                        added.push(source.name.clone());
                        let model = Model {
                            source: ModelSource {
                                labels,
                                ..source.clone()
                            },
                            versions: BTreeMap::new(),
                            is_wanted: true,
                        };
                        models.insert(source.name.clone(), model);
                    }
                }
            }
        }
        self.poll();
        self.await_loads();
        let labelled = self.set_labels(&sources);
        let failed: Vec<String> = added
            .into_iter()
            .filter(|name| !read(&self.table).contains_key(name))
            .collect();
        match failed.is_empty() {
            true => labelled,
            false => Err(Status::new(
                ferroflow_base::Code::Unknown,
                format!(
                    "{} servable(s) did not become available: {{{}}}",
                    failed.len(),
                    failed
                        .iter()
                        .map(|name| format!(
                            "{{name: {name} version: latest}} due to error: {}",
                            self.error_of(name)
                        ))
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
            )),
        }
    }

    /// Whether these models are served, and no others, with these labels.
    pub(crate) fn has(&self, sources: &[ModelSource]) -> bool {
        let models = lock(&self.state);
        let wanted = models.values().filter(|m| m.is_wanted);
        wanted.count() == sources.len()
            && sources.iter().all(|source| {
                let model = models.get(&source.name);
                model.is_some_and(|m| m.is_wanted && m.source == *source)
            })
    }

    fn error_of(&self, name: &str) -> String {
        let models = lock(&self.state);
        let versions = models.get(name).map(|m| &m.versions);
        let mut errors = versions.into_iter().flat_map(|v| v.values().rev());
        let error = errors.find_map(|v| v.error.as_ref());
        error.map_or("no version was found".to_string(), |e| {
            e.message().to_string()
        })
    }

    fn set_labels(&self, sources: &[ModelSource]) -> Result<()> {
        let mut models = lock(&self.state);
        for source in sources {
            let Some(model) = models.get(&source.name) else {
                continue;
            };
            for (label, version) in &source.labels {
                let known = model.versions.get(version);
                let is_new = model.source.labels.get(label).is_none_or(|v| v == version);
                let is_free = self.options.labels_need_no_version && is_new;
                if !is_free && known.is_none_or(|v| v.state != State::Available) {
                    return Err(failed_precondition!(
                        "Request to assign label to version {version} of model {}, which is not \
                         currently available for inference",
                        source.name
                    ));
                }
            }
        }
        for source in sources {
            if let Some(model) = models.get_mut(&source.name) {
                model.source.labels = source.labels.clone();
            }
        }
        self.publish(&models);
        Ok(())
    }

    /// Waits until no version is being loaded.
    pub fn await_loads(&self) {
        self.wait_while(|v| matches!(v.state, State::Start | State::Loading));
    }

    /// Waits until no version is being loaded or unloaded.
    pub fn await_changes(&self) {
        self.wait_while(|v| !matches!(v.state, State::Available | State::End));
    }

    fn wait_while(&self, changes: impl Fn(&Version) -> bool) {
        let mut models = lock(&self.state);
        while models
            .values()
            .flat_map(|m| m.versions.values())
            .any(&changes)
        {
            models = self
                .changed
                .wait(models)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Looks for new versions, starts to load them, and removes those that are replaced.
    pub fn poll(self: &Arc<Self>) {
        let sources: Vec<(ModelSource, bool)> = {
            let models = lock(&self.state);
            let sources = models.values().map(|m| (m.source.clone(), m.is_wanted));
            sources.collect()
        };
        for (source, is_wanted) in sources {
            let found = match is_wanted {
                true => aspired(&source),
                false => Ok(BTreeMap::new()),
            };
            match found {
                Ok(found) => self.aspire(&source.name, found),
                Err(e) => tracing::warn!(model = source.name, "{e}"),
            }
        }
    }

    fn aspire(self: &Arc<Self>, name: &str, found: BTreeMap<i64, PathBuf>) {
        let mut models = lock(&self.state);
        let Some(model) = models.get_mut(name) else {
            return;
        };
        for (number, version) in &mut model.versions {
            version.is_aspired = found.contains_key(number);
        }
        let mut to_load = Vec::new();
        for (number, path) in found {
            let version = model
                .versions
                .entry(number)
                .or_insert_with(|| Version::new(path.clone()));
            version.path = path;
            let is_new = version.state == State::Start && version.attempts == 0;
            let is_back = version.state == State::End && version.error.is_none();
            if is_new || is_back || self.is_due(version) {
                version.files = files(&version.path);
                version.attempts = if is_back { 1 } else { version.attempts + 1 };
                (version.state, version.error) = (State::Loading, None);
                version.tried = Instant::now();
                to_load.push((
                    number,
                    version.path.clone(),
                    version.files.iter().map(|f| f.1).sum(),
                ));
            }
        }
        let removed = self.settle(&mut models, name);
        drop(models);
        for (number, path, bytes) in to_load {
            let (manager, name) = (self.clone(), name.to_string());
            let load = move || manager.load(&name, number, &path, bytes);
            if let Err(e) = std::thread::Builder::new()
                .name("ferroflow-load".into())
                .spawn(load)
            {
                tracing::error!("cannot start a thread: {e}");
            }
        }
        self.unload_all(name, removed);
    }

    /// Whether to try a version again that failed.
    fn is_due(&self, version: &Version) -> bool {
        if version.error.is_none() || version.state != State::End {
            return false;
        }
        let waited = version.tried.elapsed() >= self.options.retry_interval;
        let again = waited && version.attempts <= self.options.max_retries;
        again || files(&version.path) != version.files
    }

    /// Opens and warms up a version.
    fn load(self: &Arc<Self>, name: &str, number: i64, path: &Path, bytes: u64) {
        let began = Instant::now();
        let open = || {
            self.reserve(name, number, bytes)?;
            let servable = Arc::new(Servable::open(name, number, path, &self.options.load)?);
            warmup::run(&servable, &self.options, &self.metrics)?;
            Ok(servable)
        };
        let opened = self.loads.run(|| contained(open));
        let mut models = lock(&self.state);
        let version = models
            .get_mut(name)
            .and_then(|m| m.versions.get_mut(&number));
        if let Some(version) = version {
            match opened {
                Ok(servable) => {
                    let took = began.elapsed().as_secs_f64();
                    tracing::info!(model = name, version = number, seconds = took, "loaded");
                    (version.state, version.error) = (State::Available, None);
                    version.servable = Some(servable);
                }
                Err(e) => {
                    tracing::error!(model = name, version = number, "not loaded: {e}");
                    (version.state, version.error) = (State::End, Some(e));
                    version.bytes = 0;
                }
            }
        }
        let removed = self.settle(&mut models, name);
        drop(models);
        self.changed.notify_all();
        self.unload_all(name, removed);
    }

    /// Reserves the memory of a version.
    fn reserve(&self, name: &str, number: i64, bytes: u64) -> Result<()> {
        let mut models = lock(&self.state);
        let versions = models.values().flat_map(|m| m.versions.values());
        let used: u64 = versions.map(|v| v.bytes).sum();
        if let Some(budget) = self.options.memory_budget
            && used.saturating_add(bytes) > budget
        {
            return Err(resource_exhausted!(
                "Insufficient resources to load servable {{name: {name} version: {number}}}: it needs \
                 {bytes} bytes, {used} of {budget} are used"
            ));
        }
        let version = models
            .get_mut(name)
            .and_then(|m| m.versions.get_mut(&number));
        if let Some(version) = version {
            version.bytes = bytes;
        }
        Ok(())
    }

    /// Removes versions that are no longer wanted, if another one is available or none is wanted, and publishes what
    /// is left; returns the removed ones.
    fn settle(&self, models: &mut BTreeMap<String, Model>, name: &str) -> Vec<Removed> {
        let mut removed = Vec::new();
        let Some(model) = models.get_mut(name) else {
            return removed;
        };
        let mut wanted = model.versions.values().filter(|v| v.is_aspired).peekable();
        let may_remove = wanted.peek().is_none() || wanted.any(|v| v.state == State::Available);
        if may_remove {
            for (number, version) in &mut model.versions {
                if !version.is_aspired && version.state == State::Available {
                    version.state = State::Unloading;
                    removed.extend(version.servable.take().map(|s| (*number, s)));
                }
            }
        }
        let over = |v: &Version| v.state == State::End && !v.is_aspired;
        while model.versions.values().filter(|v| over(v)).count() > MAX_ENDED {
            let oldest = model
                .versions
                .iter()
                .find(|(_, v)| over(v))
                .map(|(n, _)| *n);
            oldest.and_then(|n| model.versions.remove(&n));
        }
        if !model.is_wanted && model.versions.values().all(|v| v.state == State::End) {
            models.remove(name);
        }
        self.publish(models);
        removed
    }

    /// Frees versions on threads of their own.
    fn unload_all(self: &Arc<Self>, name: &str, removed: Vec<Removed>) {
        for (number, servable) in removed {
            let (manager, name) = (self.clone(), name.to_string());
            let unload = move || manager.unload(&name, number, servable);
            if let Err(e) = std::thread::Builder::new()
                .name("ferroflow-unload".into())
                .spawn(unload)
            {
                tracing::error!("cannot start a thread: {e}");
            }
        }
    }

    /// Frees a version when its last request has ended.
    fn unload(self: &Arc<Self>, name: &str, number: i64, servable: Arc<Servable>) {
        while Arc::strong_count(&servable) > 1 {
            std::thread::sleep(Duration::from_millis(2));
        }
        drop(servable);
        tracing::info!(model = name, version = number, "unloaded");
        let mut models = lock(&self.state);
        let version = models
            .get_mut(name)
            .and_then(|m| m.versions.get_mut(&number));
        if let Some(version) = version {
            (version.state, version.bytes) = (State::End, 0);
        }
        let removed = self.settle(&mut models, name);
        drop(models);
        self.changed.notify_all();
        self.unload_all(name, removed);
    }

    fn publish(&self, models: &BTreeMap<String, Model>) {
        let mut table = Table::new();
        for (name, model) in models {
            let versions = model.versions.iter();
            let versions = versions.filter_map(|(n, v)| Some((*n, v.servable.clone()?)));
            let versions = ordered_map(versions);
            if !versions.is_empty() {
                let labels = model.source.labels.clone();
                table.insert(name.clone(), Entry { versions, labels });
            }
        }
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    /// Returns the version that a request names, by default the newest one.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the specification has no name or an unknown label; NOT_FOUND if the model or version is
    /// not available.
    pub fn find(&self, spec: Option<&ModelSpec>) -> Result<Arc<Servable>> {
        let spec = spec.ok_or_else(|| invalid_argument!("Missing ModelSpec"))?;
        if spec.name.is_empty() {
            return Err(invalid_argument!("ModelSpec has no name specified."));
        }
        let table = read(&self.table);
        let entry = table.get(&spec.name);
        let specific = |version: i64| {
            let found = entry.and_then(|e| e.versions.get(&version));
            found.cloned().ok_or_else(|| {
                not_found!(
                    "Servable not found for request: Specific({}, {version})",
                    spec.name
                )
            })
        };
        match &spec.version_choice {
            Some(VersionChoice::Version(version)) => specific(version.value),
            Some(VersionChoice::VersionLabel(label)) => {
                let labelled = entry.and_then(|e| e.labels.get(label));
                specific(*labelled.ok_or_else(|| {
                    invalid_argument!("Unrecognized servable version label: {label}")
                })?)
            }
            None => {
                let newest = entry.and_then(|e| e.versions.values().next_back());
                newest.cloned().ok_or_else(|| {
                    not_found!("Servable not found for request: Latest({})", spec.name)
                })
            }
        }
    }

    /// The states of a model's versions, newest first.
    ///
    /// # Errors
    /// NOT_FOUND if the model, or the version that is asked for, is not known.
    pub fn status(&self, spec: Option<&ModelSpec>) -> Result<Vec<VersionStatus>> {
        let spec = spec.ok_or_else(|| invalid_argument!("Missing ModelSpec"))?;
        let models = lock(&self.state);
        let model = models.get(&spec.name);
        let status = |(number, version): (&i64, &Version)| VersionStatus {
            version: *number,
            state: version.state,
            error: version.error.clone(),
        };
        let versions = model.into_iter().flat_map(|m| m.versions.iter().rev());
        let wanted = match &spec.version_choice {
            Some(VersionChoice::Version(version)) => Some(version.value),
            Some(VersionChoice::VersionLabel(label)) => {
                let labelled = model.and_then(|m| m.source.labels.get(label));
                Some(*labelled.ok_or_else(|| {
                    invalid_argument!("Unrecognized servable version label: {label}")
                })?)
            }
            None => None,
        };
        let found: Vec<_> = versions
            .filter(|(n, _)| wanted.is_none_or(|w| w == **n))
            .map(status)
            .collect();
        match (found.is_empty(), wanted) {
            (false, _) => Ok(found),
            (true, Some(version)) => Err(not_found!(
                "Could not find version {version} of model {}",
                spec.name
            )),
            (true, None) => Err(not_found!(
                "Could not find any versions of model {}",
                spec.name
            )),
        }
    }

    /// The names of the models, sorted, and whether each has an available version.
    pub fn models(&self) -> Vec<(String, bool)> {
        let table = read(&self.table);
        let models = lock(&self.state);
        let names = models.values().filter(|m| m.is_wanted);
        let names = names.map(|m| m.source.name.clone());
        names.map(|n| (n.clone(), table.contains_key(&n))).collect()
    }

    /// The source of a model, if it is served.
    pub fn source(&self, name: &str) -> Option<ModelSource> {
        lock(&self.state).get(name).map(|m| m.source.clone())
    }
}

fn read(table: &RwLock<Arc<Table>>) -> Arc<Table> {
    table.read().unwrap_or_else(PoisonError::into_inner).clone()
}
