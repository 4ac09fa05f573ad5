//! The cache of compiled models: a folder with a BEF file for each signature of a version.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::proto::SignatureDef;
use ferroflow_model::proto::serving::SignatureDefMap;
use ferroflow_model::{decode, encode, make_folder, write_output};
use ferroflow_runtime::{CompileRequest, CompiledModel, Session, SessionOptions};
use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::time::UNIX_EPOCH;

/// The file with the signatures. It is written last: a folder without it is not complete.
const SIGNATURES: &str = "signatures.pb";

/// The file with the path of the version that was compiled.
const SOURCE: &str = "source";
/// Folders within folders of a model: links may form a circle.
const MAX_DEPTH: usize = 16;

/// A number that changes when a file of the model does.
pub(crate) fn key(path: &Path, tags: &[String]) -> u64 {
    let mut hasher = DefaultHasher::new();
    (env!("CARGO_PKG_VERSION"), path, tags).hash(&mut hasher);
    for (file, size, modified) in files(path) {
        (file, size, modified).hash(&mut hasher);
    }
    hasher.finish()
}

/// The files of a model, with their sizes and times in nanoseconds, sorted by path.
pub(crate) fn files(path: &Path) -> Vec<(std::path::PathBuf, u64, u128)> {
    let (mut found, mut folders) = (Vec::new(), vec![(path.to_path_buf(), 0)]);
    while let Some((path, depth)) = folders.pop() {
        let Ok(meta) = std::fs::metadata(&path) else {
            continue;
        };
        if meta.is_dir() {
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let inner = entries.map(|e| (e.path(), depth + 1));
            folders.extend(inner.filter(|(_, depth)| *depth <= MAX_DEPTH));
            continue;
        }
        let modified = meta.modified().ok();
        let since = modified.and_then(|m| m.duration_since(UNIX_EPOCH).ok());
        found.push((path, meta.len(), since.map_or(0, |s| s.as_nanos())));
    }
    found.sort_unstable();
    found
}

type Cached = (
    BTreeMap<String, CompiledModel>,
    HashMap<String, SignatureDef>,
);

/// Opens a version that was cached; `None` if it was not, or if a file cannot be used.
pub(crate) fn open(folder: &Path, options: &SessionOptions) -> Option<Cached> {
    let defs = std::fs::read(folder.join(SIGNATURES)).ok()?;
    let defs: SignatureDefMap = decode(&defs).ok()?;
    let mut models = BTreeMap::new();
    for i in 0.. {
        let file = folder.join(format!("{i}.bef"));
        if !file.exists() {
            break;
        }
        let name = std::fs::read_to_string(folder.join(format!("{i}.name"))).ok()?;
        let model = CompiledModel::open(&file, options.clone()).ok()?;
        if !model.is_packed() {
            return None;
        }
        models.insert(name, model);
    }
    (!models.is_empty()).then_some((models, defs.signature_def))
}

/// Compiles the signatures of the version at `source` into `folder`, and removes what is not used any more.
///
/// # Errors
/// FAILED_PRECONDITION if a signature uses state or has default inputs; those of writing the files.
pub(crate) fn write<'a>(
    folder: &Path,
    source: &Path,
    session: &Session,
    requests: impl Iterator<Item = (&'a str, CompileRequest)>,
    defs: &HashMap<String, SignatureDef>,
) -> Result<()> {
    if defs.values().any(|d| !d.defaults.is_empty()) {
        return Err(invalid_argument!("a signature has default inputs"));
    }
    make_folder(folder)?;
    for (i, (name, request)) in requests.enumerate() {
        session.compile_to(&folder.join(format!("{i}.bef")), &request)?;
        write_output(&folder.join(format!("{i}.name")), name.as_bytes())?;
    }
    let defs = SignatureDefMap {
        signature_def: defs.clone(),
    };
    write_output(&folder.join(SOURCE), source.as_os_str().as_encoded_bytes())?;
    write_output(&folder.join(SIGNATURES), &encode(&defs))?;
    remove_stale(folder, source);
    Ok(())
}

/// Removes what was compiled from an earlier content of this version, and from versions that do not exist any more.
fn remove_stale(folder: &Path, source: &Path) {
    let siblings = folder.parent().and_then(|all| std::fs::read_dir(all).ok());
    for other in siblings.into_iter().flatten().flatten() {
        let other = other.path();
        let Ok(of) = std::fs::read_to_string(other.join(SOURCE)) else {
            continue;
        };
        let of = Path::new(&of);
        let is_older = of == source && without_key(&other) == without_key(folder);
        if other != folder && (is_older || !of.exists()) {
            // It is only disk space.
            let _ = std::fs::remove_dir_all(&other);
        }
    }
}

/// The name of a folder without its [`key`].
fn without_key(folder: &Path) -> Option<&str> {
    let name = folder.file_name()?.to_str()?;
    name.rsplit_once('-').map(|(name, _)| name)
}
