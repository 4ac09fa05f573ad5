//! Files by name: local ones, and those of file systems that were registered for a scheme, such as `mem://a/b`
//! (TensorFlow's `Env`). The functions are those of `std::fs`; errors of file systems are kept in theirs.

use ferroflow_base::{Code, Result, Status, already_exists, unimplemented_error};
use ferroflow_tensor::MappedFile;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Cursor, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// A file system. Paths are whole URIs.
pub trait FileSystem: Send + Sync {
    /// Returns the content of a file.
    ///
    /// # Errors
    /// NOT_FOUND and others, as of each of these functions.
    fn read(&self, path: &str) -> Result<Vec<u8>>;
    /// Creates a file, or replaces its content.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn write(&self, path: &str, content: &[u8]) -> Result<()>;
    /// Describes a file or folder.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn stat(&self, path: &str) -> Result<FileInfo>;
    /// Returns the names in a folder.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn children(&self, path: &str) -> Result<Vec<String>>;
    /// Returns the paths that match a pattern.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn matching(&self, pattern: &str) -> Result<Vec<String>>;
    /// Creates a folder, and its missing parents if `parents`.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn create_dir(&self, path: &str, parents: bool) -> Result<()>;
    /// Deletes a file.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn remove_file(&self, path: &str) -> Result<()>;
    /// Deletes an empty folder.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn remove_dir(&self, path: &str) -> Result<()>;
    /// Renames a file, which replaces one of the name `to`.
    ///
    /// # Errors
    /// As [`FileSystem::read`].
    fn rename(&self, from: &str, to: &str) -> Result<()>;
}

/// What is known of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileInfo {
    /// Bytes.
    pub length: u64,
    /// Time of the last change, in nanoseconds since 1970.
    pub modified_nanos: i64,
    /// Whether it is a folder.
    pub is_dir: bool,
}

static SYSTEMS: RwLock<BTreeMap<String, Arc<dyn FileSystem>>> = RwLock::new(BTreeMap::new());

/// Uses a file system for the URIs of a scheme, from now on.
///
/// # Errors
/// ALREADY_EXISTS if the scheme has one.
pub fn register_file_system(scheme: &str, system: Arc<dyn FileSystem>) -> Result<()> {
    let mut systems = SYSTEMS.write().unwrap_or_else(PoisonError::into_inner);
    if scheme == "file" || scheme.is_empty() || systems.contains_key(scheme) {
        return Err(already_exists!(
            "File factory for {scheme} already registered"
        ));
    }
    systems.insert(scheme.to_string(), system);
    Ok(())
}

/// The scheme of a URI, unless that is a local file (`file://…`).
fn scheme_of(path: &str) -> Option<&str> {
    let (scheme, _) = path.split_once("://")?;
    let is_letter = |c: char| c.is_ascii_alphanumeric() || c == '.';
    let is_scheme = scheme.starts_with(|c: char| c.is_ascii_alphabetic());
    (is_scheme && scheme.chars().all(is_letter) && scheme != "file").then_some(scheme)
}

/// Returns the local path of `name`, which may be a URI `file://…`. URIs of other file systems stay as they are.
pub fn local_path(name: &str) -> &str {
    let path = name
        .strip_prefix("file://")
        .and_then(|rest| rest.get(rest.find('/')?..));
    path.unwrap_or(name)
}

/// Returns the file system of a path; none for local files.
///
/// # Errors
/// UNIMPLEMENTED for unknown schemes.
pub fn file_system_of(path: &str) -> Result<Option<Arc<dyn FileSystem>>> {
    let Some(scheme) = scheme_of(path) else {
        return Ok(None);
    };
    let systems = SYSTEMS.read().unwrap_or_else(PoisonError::into_inner);
    match systems.get(scheme) {
        Some(system) => Ok(Some(system.clone())),
        None => Err(unimplemented_error!(
            "File system scheme '{scheme}' not implemented (file: '{path}')"
        )),
    }
}

/// An error of a file system as one of the standard library.
fn to_io(error: Status) -> io::Error {
    let kind = match error.code() {
        Code::NotFound => io::ErrorKind::NotFound,
        Code::AlreadyExists => io::ErrorKind::AlreadyExists,
        Code::PermissionDenied => io::ErrorKind::PermissionDenied,
        Code::InvalidArgument => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// Returns the error of a file system in an error of these functions, if that is one.
pub fn file_system_error(error: &io::Error) -> Option<Status> {
    error.get_ref()?.downcast_ref::<Status>().cloned()
}

/// Runs one of two functions: of a file system, or for a local file.
fn on<T>(
    path: &Path,
    other: impl FnOnce(&dyn FileSystem, &str) -> Result<T>,
    local: impl FnOnce(&Path) -> io::Result<T>,
) -> io::Result<T> {
    let text = path.to_str().filter(|text| text.contains("://"));
    let system = text.map(|text| (text, file_system_of(text)));
    match system {
        Some((text, Ok(Some(system)))) => other(&*system, text).map_err(to_io),
        Some((_, Err(error))) => Err(to_io(error)),
        Some((text, Ok(None))) => local(Path::new(local_path(text))),
        None => local(path),
    }
}

/// Reads a whole file.
///
/// # Errors
/// As `std::fs::read`; those of the file system.
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    on(path.as_ref(), |s, p| s.read(p), |p| fs::read(p))
}

/// Writes a whole file.
///
/// # Errors
/// As `std::fs::write`; those of the file system.
pub fn write(path: impl AsRef<Path>, content: impl AsRef<[u8]>) -> io::Result<()> {
    let content = content.as_ref();
    on(
        path.as_ref(),
        |s, p| s.write(p, content),
        |p| fs::write(p, content),
    )
}

/// Describes a file.
///
/// # Errors
/// As `std::fs::metadata`; those of the file system.
pub fn stat(path: impl AsRef<Path>) -> io::Result<FileInfo> {
    on(
        path.as_ref(),
        |s, p| s.stat(p),
        |p| {
            let found = fs::metadata(p)?;
            let modified = found.modified()?;
            let since = modified.duration_since(std::time::UNIX_EPOCH);
            Ok(FileInfo {
                length: found.len(),
                modified_nanos: since.unwrap_or_default().as_nanos() as i64,
                is_dir: found.is_dir(),
            })
        },
    )
}

/// Returns whether a file or folder exists.
pub fn exists(path: impl AsRef<Path>) -> bool {
    stat(path).is_ok()
}

/// Returns whether there is a file, not a folder.
pub fn is_file(path: impl AsRef<Path>) -> bool {
    stat(path).is_ok_and(|info| !info.is_dir)
}

/// Returns whether there is a folder.
pub fn is_dir(path: impl AsRef<Path>) -> bool {
    stat(path).is_ok_and(|info| info.is_dir)
}

/// Returns the names in a folder.
///
/// # Errors
/// As `std::fs::read_dir`; those of the file system.
pub fn children(path: impl AsRef<Path>) -> io::Result<Vec<String>> {
    on(
        path.as_ref(),
        |s, p| s.children(p),
        |p| {
            let names = fs::read_dir(p)?;
            let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
            names.map(|entry| entry.map(name)).collect()
        },
    )
}

/// Creates a folder.
///
/// # Errors
/// As `std::fs::create_dir`; those of the file system.
pub fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    on(
        path.as_ref(),
        |s, p| s.create_dir(p, false),
        |p| fs::create_dir(p),
    )
}

/// Creates a folder and its missing parents.
///
/// # Errors
/// As `std::fs::create_dir_all`; those of the file system.
pub fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    on(
        path.as_ref(),
        |s, p| s.create_dir(p, true),
        |p| fs::create_dir_all(p),
    )
}

/// Deletes a file.
///
/// # Errors
/// As `std::fs::remove_file`; those of the file system.
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    on(
        path.as_ref(),
        |s, p| s.remove_file(p),
        |p| fs::remove_file(p),
    )
}

/// Deletes an empty folder.
///
/// # Errors
/// As `std::fs::remove_dir`; those of the file system.
pub fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    on(path.as_ref(), |s, p| s.remove_dir(p), |p| fs::remove_dir(p))
}

/// Renames a file within a file system.
///
/// # Errors
/// As `std::fs::rename`; those of the file system.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    let to = to.as_ref();
    let name = to.to_string_lossy();
    on(
        from.as_ref(),
        |s, p| s.rename(p, &name),
        |p| fs::rename(p, local_path(&name)),
    )
}

/// Maps a file. The content of one that is not local is kept in an unnamed temporary file.
///
/// # Errors
/// NOT_FOUND if the file cannot be opened or mapped; those of the file system.
pub fn map(path: &Path) -> Result<MappedFile> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let content = on(
        path,
        |s, p| s.read(p).map(Ok),
        |p| Ok(Err(MappedFile::open(p))),
    );
    let content = match content.map_err(|e| crate::atomic_file::io_error(path, &e))? {
        Ok(content) => content,
        Err(local) => return local,
    };
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("ferroflow-map-{}-{number}", std::process::id());
    let copy = std::env::temp_dir().join(name);
    let failed = |e: io::Error| crate::atomic_file::io_error(&copy, &e);
    fs::write(&copy, content).map_err(failed)?;
    let mapped = MappedFile::open(&copy);
    fs::remove_file(&copy).map_err(failed)?;
    mapped
}

/// A file that is read.
pub enum FileReader {
    /// A local file.
    Local(File),
    /// The content of one of another file system.
    Other(Cursor<Vec<u8>>),
}

/// Opens a file to be read.
///
/// # Errors
/// As `File::open`; those of the file system.
pub fn open(path: impl AsRef<Path>) -> io::Result<FileReader> {
    on(
        path.as_ref(),
        |s, p| Ok(FileReader::Other(Cursor::new(s.read(p)?))),
        |p| File::open(p).map(FileReader::Local),
    )
}

impl Read for FileReader {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            FileReader::Local(file) => file.read(to),
            FileReader::Other(content) => content.read(to),
        }
    }
}

impl Seek for FileReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        match self {
            FileReader::Local(file) => file.seek(to),
            FileReader::Other(content) => content.seek(to),
        }
    }
}

/// A file that is written. What is not local is given to its file system by `sync_all`, and when the writer is
/// dropped.
pub enum FileWriter {
    /// A local file.
    Local(File),
    /// The content so far of one of another file system.
    Other(Box<OtherFile>),
}

/// A file of a file system that is written.
pub struct OtherFile {
    system: Arc<dyn FileSystem>,
    path: String,
    content: Vec<u8>,
    /// Whether the file system has the content.
    is_written: bool,
}

/// Creates a file, or makes it empty.
///
/// # Errors
/// As `File::create`; those of the file system.
pub fn create(path: impl AsRef<Path>) -> io::Result<FileWriter> {
    on(
        path.as_ref(),
        |s, p| {
            s.write(p, &[])?;
            let system = file_system_of(p)?;
            let system = system.ok_or_else(|| unimplemented_error!("{p} is local"))?;
            Ok(FileWriter::Other(Box::new(OtherFile {
                system,
                path: p.to_string(),
                content: Vec::new(),
                is_written: true,
            })))
        },
        |p| File::create(p).map(FileWriter::Local),
    )
}

impl FileWriter {
    /// Waits until the file system has the content.
    ///
    /// # Errors
    /// As `File::sync_all`; those of the file system.
    pub fn sync_all(&mut self) -> io::Result<()> {
        match self {
            FileWriter::Local(file) => file.sync_all(),
            FileWriter::Other(other) => other.sync(),
        }
    }
}

impl OtherFile {
    fn sync(&mut self) -> io::Result<()> {
        if !self.is_written {
            let written = self.system.write(&self.path, &self.content);
            written.map_err(to_io)?;
            self.is_written = true;
        }
        Ok(())
    }
}

impl Drop for OtherFile {
    fn drop(&mut self) {
        // As with local files, errors are those of a sync before.
        let _ = self.sync();
    }
}

impl Write for FileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            FileWriter::Local(file) => file.write(bytes),
            FileWriter::Other(other) => {
                other.content.extend_from_slice(bytes);
                other.is_written = false;
                Ok(bytes.len())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            FileWriter::Local(file) => file.flush(),
            FileWriter::Other(other) => other.sync(),
        }
    }
}

/// Joins a folder and a name; a URI keeps its two slashes.
pub fn join(folder: &str, name: &str) -> String {
    match folder.ends_with('/') || folder.is_empty() {
        true => format!("{folder}{name}"),
        false => format!("{folder}/{name}"),
    }
}

/// Returns the folder of a path, if it names one.
pub fn folder_of(path: &Path) -> Option<PathBuf> {
    let is_root = |folder: &Path| folder.as_os_str().is_empty() || folder.ends_with("://");
    let parent = path.parent()?.to_path_buf();
    let scheme_only = parent.to_str().is_some_and(|p| p.ends_with(":"));
    (!is_root(&parent) && !scheme_only).then_some(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes() {
        let rows = [
            ("/a/b", None),
            ("a://b", Some("a")),
            ("file:///a", None),
            ("s3.x://b/c", Some("s3.x")),
            ("1a://b", None),
            ("://b", None),
            ("a b://c", None),
        ];
        for (path, scheme) in rows {
            assert_eq!(scheme_of(path), scheme, "{path}");
        }
        let missing = read("none://a/b").map_err(|e| file_system_error(&e));
        let missing = missing.err().flatten().map(|e| e.to_string());
        let text = "UNIMPLEMENTED: File system scheme 'none' not implemented (file: 'none://a/b')";
        assert_eq!(missing.as_deref(), Some(text));
    }

    #[test]
    fn folders() {
        let rows = [
            ("a/b", Some("a")),
            ("a", None),
            ("m://a/b", Some("m://a")),
            ("m://a", None),
        ];
        for (path, folder) in rows {
            let found = folder_of(Path::new(path));
            assert_eq!(found.as_deref(), folder.map(Path::new), "{path}");
        }
    }
}
