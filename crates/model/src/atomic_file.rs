//! Files that are written completely or not at all.

use crate::files::{self, FileWriter};
use ferroflow_base::{Code, Result, Status};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the error of an operation on a file, with TensorFlow's code.
#[cold]
pub(crate) fn io_error(path: &Path, error: &io::Error) -> Status {
    if let Some(error) = files::file_system_error(error) {
        return error;
    }
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::AlreadyExists => Code::AlreadyExists,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            Code::PermissionDenied
        }
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
            Code::ResourceExhausted
        }
        io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory => Code::FailedPrecondition,
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidFilename => Code::InvalidArgument,
        _ => Code::Unknown,
    };
    // Rust appends the system's error number.
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    Status::new(code, format!("{}; {text}", path.display()))
}

/// Creates a folder and its missing parents.
///
/// # Errors
/// A file system error, such as PERMISSION_DENIED.
pub fn make_folder(folder: &Path) -> Result<()> {
    files::create_dir_all(folder).map_err(|e| io_error(folder, &e))
}

/// A file that is written under a temporary name and renamed once it is complete and on disk. Until
/// then a file of the same name is unchanged; dropping this before leaves nothing behind.
pub struct AtomicFile {
    to: PathBuf,
    /// The temporary name; `None` if the file is written directly.
    temporary: Option<PathBuf>,
    file: Option<BufWriter<FileWriter>>,
}

impl AtomicFile {
    /// Creates the file `to`, and its folder if needed.
    ///
    /// # Errors
    /// A file system error, such as PERMISSION_DENIED.
    pub fn create(to: &Path) -> Result<AtomicFile> {
        if let Some(folder) = files::folder_of(to) {
            make_folder(&folder)?;
        }
        Self::in_folder(to)
    }

    /// Creates an output file that a user named: atomically if it is a regular file; a link's
    /// target is replaced, not the link; anything else (a device, a pipe) is written directly. The
    /// folder must exist.
    ///
    /// # Errors
    /// A file system error, such as NOT_FOUND if the folder does not exist.
    pub fn create_output(to: &Path) -> Result<AtomicFile> {
        let error = |e: &io::Error| io_error(to, e);
        let is_other = to
            .to_str()
            .map(files::file_system_of)
            .transpose()?
            .flatten();
        if is_other.is_some() {
            return Self::in_folder(to);
        }
        let folder = to.parent().filter(|f| !f.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|f| !f.is_dir()) {
            return Err(io_error(folder, &io::ErrorKind::NotFound.into()));
        }
        match std::fs::metadata(to) {
            Ok(found) if !found.is_file() => {
                let file = File::options().write(true).open(to);
                Ok(AtomicFile {
                    to: to.to_path_buf(),
                    temporary: None,
                    file: Some(buffered(FileWriter::Local(file.map_err(|e| error(&e))?))),
                })
            }
            Ok(_) => Self::in_folder(&to.canonicalize().map_err(|e| error(&e))?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => match std::fs::read_link(to) {
                Ok(target) => Self::create_output(&folder.unwrap_or(Path::new("")).join(target)),
                Err(_) => Self::in_folder(to),
            },
            Err(e) => Err(error(&e)),
        }
    }

    fn in_folder(to: &Path) -> Result<AtomicFile> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let mut name = to.as_os_str().to_os_string();
        name.push(format!(".tempstate{}-{n}", std::process::id()));
        let temporary = PathBuf::from(name);
        let file = files::create(&temporary).map_err(|e| io_error(&temporary, &e))?;
        Ok(AtomicFile {
            to: to.to_path_buf(),
            temporary: Some(temporary),
            file: Some(buffered(file)),
        })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// A file system error, such as RESOURCE_EXHAUSTED if the disk is full.
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.file {
            Some(file) => file
                .write_all(bytes)
                .map_err(|e| io_error(self.temporary.as_deref().unwrap_or(&self.to), &e)),
            None => Ok(()),
        }
    }

    /// Syncs the file and renames it to its final name.
    ///
    /// # Errors
    /// A file system error; then nothing is left behind.
    pub fn commit(mut self) -> Result<()> {
        let Some(mut file) = self.file.take() else {
            return Ok(());
        };
        let Some(temporary) = &self.temporary else {
            return file.flush().map_err(|e| io_error(&self.to, &e));
        };
        let written = file.flush().and_then(|()| file.get_mut().sync_all());
        drop(file);
        let placed = written.and_then(|()| files::rename(temporary, &self.to));
        if let Err(e) = placed {
            let _ = files::remove_file(temporary);
            return Err(io_error(&self.to, &e));
        }
        sync_folder(&self.to);
        Ok(())
    }
}

impl Drop for AtomicFile {
    fn drop(&mut self) {
        if let (Some(_), Some(temporary)) = (self.file.take(), &self.temporary) {
            let _ = files::remove_file(temporary);
        }
    }
}

fn buffered(file: FileWriter) -> BufWriter<FileWriter> {
    BufWriter::with_capacity(1 << 18, file)
}

/// Age in seconds from which temporary files of other processes are removed: if the process has
/// exited, and if that cannot be determined.
const STALE: [u64; 2] = [60, 86_400];

/// Removes temporary files of killed processes from a file's folder.
pub(crate) fn remove_stale(file: &Path) {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let processes = Path::new("/proc/self").exists();
    let is_stale = |entry: &std::fs::DirEntry| {
        let name = entry.file_name();
        let (_, mark) = name.to_str()?.rsplit_once(".tempstate")?;
        let (process, count) = mark.split_once('-')?;
        let (process, _) = (process.parse::<u32>().ok()?, count.parse::<u64>().ok()?);
        let lives = processes && Path::new("/proc").join(process.to_string()).exists();
        let age = entry.metadata().ok()?.modified().ok()?.elapsed().ok()?;
        Some(!lives && age.as_secs() >= STALE[usize::from(!processes)])
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_stale(&entry) == Some(true) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Makes changes to names in a file's folder durable. File systems without support for this still
/// have the file.
pub(crate) fn sync_folder(file: &Path) {
    let folder = match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    if let Ok(folder) = File::open(folder) {
        let _ = folder.sync_all();
    }
}

/// Writes a whole file atomically.
pub(crate) fn write_file(to: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create(to)?;
    file.write(bytes)?;
    file.commit()
}

/// Writes a whole output file that a user named; see [`AtomicFile::create_output`].
///
/// # Errors
/// A file system error, such as NOT_FOUND if the folder does not exist.
pub fn write_output(to: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::create_output(to)?;
    file.write(bytes)?;
    file.commit()
}
