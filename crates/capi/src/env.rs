//! Files, threads and time (`tensorflow/c/env.h`).

use crate::TF_Status;
use crate::guard::{delete, guard, guard_plain, handle, list, text, unique};
use ferroflow_base::{Code, Result, Status, failed_precondition, not_found};
use ferroflow_model::files::{self, FileWriter};
use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

/// The status of an error of the system; the message names the file.
fn of_io(name: &str, error: &io::Error) -> Status {
    if let Some(error) = files::file_system_error(error) {
        return error;
    }
    let code = match error.kind() {
        io::ErrorKind::NotFound => Code::NotFound,
        io::ErrorKind::PermissionDenied => Code::PermissionDenied,
        io::ErrorKind::AlreadyExists => Code::AlreadyExists,
        io::ErrorKind::DirectoryNotEmpty
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory => Code::FailedPrecondition,
        io::ErrorKind::StorageFull => Code::ResourceExhausted,
        io::ErrorKind::InvalidInput => Code::InvalidArgument,
        _ => Code::Unknown,
    };
    let text = error.to_string();
    // The system's words alone, as TensorFlow has them.
    let text = text.split(" (os error").next().unwrap_or_default();
    Status::new(code, format!("{name}; {text}"))
}

/// Runs an operation on a file that is named by the client.
///
/// # Safety
/// `name` is NULL or a C string.
unsafe fn on_file(
    name: *const c_char,
    status: *mut TF_Status,
    body: impl FnOnce(&str) -> io::Result<()>,
) {
    guard(status, (), || {
        // SAFETY: as this function's.
        let name = unsafe { text(name) }?;
        body(name).map_err(|e| of_io(name, &e))
    });
}

/// Creates a folder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CreateDir(dirname: *const c_char, status: *mut TF_Status) {
    // SAFETY: the contract of the header.
    unsafe { on_file(dirname, status, |name| files::create_dir(name)) }
}

/// Deletes an empty folder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteDir(dirname: *const c_char, status: *mut TF_Status) {
    // SAFETY: the contract of the header.
    unsafe { on_file(dirname, status, |name| files::remove_dir(name)) }
}

/// Deletes a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteFile(filename: *const c_char, status: *mut TF_Status) {
    // SAFETY: the contract of the header.
    unsafe { on_file(filename, status, |name| files::remove_file(name)) }
}

/// Deletes a folder with its content; counts what could not be deleted.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DeleteRecursively(
    dirname: *const c_char,
    undeleted_file_count: *mut i64,
    undeleted_dir_count: *mut i64,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (name, files, dirs) = unsafe {
            (
                text(dirname)?,
                undeleted_file_count.as_mut(),
                undeleted_dir_count.as_mut(),
            )
        };
        let mut kept = (0, 0);
        // A link that leads nowhere exists, too.
        let is_there = files::exists(name) || Path::new(name).symlink_metadata().is_ok();
        let result = match is_there {
            true => {
                delete_all(name, &mut kept);
                match kept {
                    (0, 0) => Ok(()),
                    _ => Err(failed_precondition!("{name} was not deleted completely")),
                }
            }
            false => {
                kept.1 = 1;
                Err(not_found!("Directory or file not found: {name}"))
            }
        };
        if let Some(files) = files {
            *files = kept.0;
        }
        if let Some(dirs) = dirs {
            *dirs = kept.1;
        }
        result
    });
}

fn delete_all(path: &str, kept: &mut (i64, i64)) {
    let is_link = Path::new(path).is_symlink();
    if is_link || !files::is_dir(path) {
        kept.0 += i64::from(files::remove_file(path).is_err());
        return;
    }
    for name in files::children(path).unwrap_or_default() {
        delete_all(&files::join(path, &name), kept);
    }
    kept.1 += i64::from(files::remove_dir(path).is_err());
}

/// What is known of a file.
#[repr(C)]
pub struct TF_FileStatistics {
    /// Bytes.
    pub length: i64,
    /// Time of the last change, in nanoseconds since 1970.
    pub mtime_nsec: i64,
    /// Whether it is a folder.
    pub is_directory: bool,
}

/// Describes a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FileStat(
    filename: *const c_char,
    stats: *mut TF_FileStatistics,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (name, stats) = unsafe { (text(filename)?, unique(stats)?) };
        let found = files::stat(name).map_err(|e| of_io(name, &e))?;
        *stats = TF_FileStatistics {
            length: found.length as i64,
            mtime_nsec: found.modified_nanos,
            is_directory: found.is_dir,
        };
        Ok(())
    });
}

/// A file that is written.
pub struct TF_WritableFileHandle {
    file: io::BufWriter<FileWriter>,
    name: String,
}

/// Creates a file, or makes it empty.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_NewWritableFile(
    filename: *const c_char,
    file: *mut *mut TF_WritableFileHandle,
    status: *mut TF_Status,
) {
    guard(status, (), || {
        // SAFETY: the contract of the header.
        let (name, to) = unsafe { (text(filename)?, unique(file)?) };
        let file = files::create(name).map_err(|e| of_io(name, &e))?;
        *to = handle(TF_WritableFileHandle {
            file: io::BufWriter::new(file),
            name: name.to_string(),
        });
        Ok(())
    });
}

/// Runs an operation on an open file.
///
/// # Safety
/// `file` is NULL or valid and not used otherwise.
unsafe fn on_open(
    file: *mut TF_WritableFileHandle,
    status: *mut TF_Status,
    body: impl FnOnce(&mut io::BufWriter<FileWriter>) -> io::Result<()>,
) {
    guard(status, (), || {
        // SAFETY: as this function's.
        let open = unsafe { unique(file) }?;
        body(&mut open.file).map_err(|e| of_io(&open.name, &e))
    });
}

/// Writes what is left, closes the file and deletes the handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_CloseWritableFile(
    file: *mut TF_WritableFileHandle,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        on_open(file, status, Write::flush);
        delete(file);
    }
}

/// Waits until the file is on the disk.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_SyncWritableFile(
    file: *mut TF_WritableFileHandle,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        on_open(file, status, |file| {
            file.flush()?;
            file.get_mut().sync_all()
        });
    }
}

/// Writes what is left.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_FlushWritableFile(
    file: *mut TF_WritableFileHandle,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe { on_open(file, status, Write::flush) }
}

/// Appends bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_AppendWritableFile(
    file: *mut TF_WritableFileHandle,
    data: *const c_char,
    length: usize,
    status: *mut TF_Status,
) {
    // SAFETY: the contract of the header.
    unsafe {
        let bytes = list(data.cast::<u8>(), length);
        on_open(file, status, |file| file.write_all(bytes));
    }
}

/// Texts, of which the next one is read.
pub struct TF_StringStream {
    texts: Vec<CString>,
    next: usize,
}

fn stream(texts: impl IntoIterator<Item = String>) -> *mut TF_StringStream {
    let texts = texts.into_iter().filter_map(|text| CString::new(text).ok());
    handle(TF_StringStream {
        texts: texts.collect(),
        next: 0,
    })
}

/// Reads the next text, which lives as long as the stream; returns false at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringStreamNext(
    texts: *mut TF_StringStream,
    result: *mut *const c_char,
) -> bool {
    // SAFETY: the contract of the header.
    let (Some(texts), Some(result)) = (unsafe { texts.as_mut() }, unsafe { result.as_mut() })
    else {
        return false;
    };
    let next = texts.texts.get(texts.next);
    texts.next += 1;
    *result = next.map_or(std::ptr::null(), |text| text.as_ptr());
    next.is_some()
}

/// Deletes a stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StringStreamDone(texts: *mut TF_StringStream) {
    // SAFETY: the contract of the header.
    unsafe { delete(texts) }
}

/// Lists the names in a folder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetChildren(
    filename: *const c_char,
    status: *mut TF_Status,
) -> *mut TF_StringStream {
    let names = guard(status, Vec::new(), || {
        // SAFETY: the contract of the header.
        let name = unsafe { text(filename) }?;
        files::children(name).map_err(|e| of_io(name, &e))
    });
    stream(names)
}

/// The folders for temporary files, those of the environment first, as in TensorFlow.
fn temporary_folders() -> Vec<String> {
    let own = ["TEST_TMPDIR", "TMPDIR", "TMP"].map(|name| std::env::var(name).ok());
    let all = own.into_iter().flatten().chain(["/tmp".to_string()]);
    let mut folders: Vec<String> = Vec::new();
    for folder in all {
        if Path::new(&folder).is_dir() && !folders.contains(&folder) {
            folders.push(folder);
        }
    }
    folders
}

/// Lists the folders for temporary files.
#[unsafe(no_mangle)]
pub extern "C" fn TF_GetLocalTempDirectories() -> *mut TF_StringStream {
    guard_plain(std::ptr::null_mut(), || stream(temporary_folders()))
}

/// Creates an empty temporary file and returns its name, to be freed by `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetTempFileName(extension: *const c_char) -> *mut c_char {
    guard_plain(std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let extension = unsafe { text(extension) }.unwrap_or("");
        let folder = temporary_folders().into_iter().next().unwrap_or_default();
        let dot = if extension.is_empty() { "" } else { "." };
        for i in 0..1000u32 {
            let unique = format!("{:x}_{:x}_{i}", std::process::id(), nanos());
            let name = format!("{folder}/tmp_file_tensorflow_{unique}{dot}{extension}");
            if File::create_new(&name).is_ok() {
                let name = CString::new(name).unwrap_or_default();
                // SAFETY: the text ends with a NUL.
                return unsafe { libc::strdup(name.as_ptr()) };
            }
        }
        std::ptr::null_mut()
    })
}

fn nanos() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_nanos()
}

/// Returns the time in nanoseconds since 1970.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NowNanos() -> u64 {
    nanos() as u64
}

/// Returns the time in microseconds since 1970.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NowMicros() -> u64 {
    (nanos() / 1_000) as u64
}

/// Returns the time in seconds since 1970.
#[unsafe(no_mangle)]
pub extern "C" fn TF_NowSeconds() -> u64 {
    (nanos() / 1_000_000_000) as u64
}

/// How a thread is started.
#[repr(C)]
pub struct TF_ThreadOptions {
    /// Bytes of stack; 0 means the system's default.
    pub stack_size: usize,
    /// Bytes of guard area; not used.
    pub guard_size: usize,
    /// The NUMA node; not used.
    pub numa_node: c_int,
}

/// A thread.
pub struct TF_Thread(Option<JoinHandle<()>>);

/// Sets default options.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_DefaultThreadOptions(options: *mut TF_ThreadOptions) {
    if !options.is_null() {
        let default = TF_ThreadOptions {
            stack_size: 0,
            guard_size: 0,
            numa_node: -1,
        };
        // SAFETY: the contract of the header: room for options.
        unsafe { options.write(default) };
    }
}

/// The argument of a thread's function.
struct Param(*mut c_void);

// SAFETY: the client hands it over to the new thread.
unsafe impl Send for Param {}

/// Starts a thread, which is to be joined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_StartThread(
    options: *const TF_ThreadOptions,
    thread_name: *const c_char,
    work_func: Option<unsafe extern "C" fn(*mut c_void)>,
    param: *mut c_void,
) -> *mut TF_Thread {
    guard(std::ptr::null_mut(), std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let (stack, name) = unsafe {
            (
                options.as_ref().map_or(0, |o| o.stack_size),
                text(thread_name),
            )
        };
        let mut builder = std::thread::Builder::new().name(name.unwrap_or("").to_string());
        if stack > 0 {
            builder = builder.stack_size(stack);
        }
        let param = Param(param);
        let spawned = builder.spawn(move || {
            let param = param;
            if let Some(work) = work_func {
                // SAFETY: the client's function, with its own argument.
                unsafe { work(param.0) };
            }
        });
        let thread = spawned.map_err(|e| of_io("thread", &e))?;
        Ok(handle(TF_Thread(Some(thread))))
    })
}

/// Waits for a thread and deletes its handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_JoinThread(thread: *mut TF_Thread) {
    // SAFETY: the contract of the header.
    if let Some(thread) = unsafe { thread.as_mut() }
        && let Some(running) = thread.0.take()
    {
        // A panic of the client's function cannot pass its border.
        let _ = running.join();
    }
    // SAFETY: as above.
    unsafe { delete(thread) }
}

/// Loads a shared library, which stays loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_LoadSharedLibrary(
    library_filename: *const c_char,
    status: *mut TF_Status,
) -> *mut c_void {
    guard(status, std::ptr::null_mut(), || {
        // SAFETY: the contract of the header.
        let name = unsafe { text(library_filename) }?;
        // SAFETY: the client asks to run the library's initializers.
        let library = unsafe { libloading::os::unix::Library::new(name) };
        let library = library.map_err(|e| not_loaded(name, &e))?;
        Ok(library.into_raw())
    })
}

/// The error of a library that cannot be loaded, in the loader's words.
pub(crate) fn not_loaded(name: &str, error: &libloading::Error) -> Status {
    match std::error::Error::source(error) {
        Some(loader) => not_found!("{loader}"),
        None => not_found!("{name}: {error}"),
    }
}

/// Finds a name in a library that was loaded.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn TF_GetSymbolFromLibrary(
    library: *mut c_void,
    symbol_name: *const c_char,
    status: *mut TF_Status,
) -> *mut c_void {
    guard(status, std::ptr::null_mut(), || -> Result<*mut c_void> {
        // SAFETY: the contract of the header.
        let name = unsafe { text(symbol_name) }?;
        let c_name = CString::new(name).unwrap_or_default();
        // SAFETY: the client's handle and a C string.
        let found = unsafe { libc::dlsym(library, c_name.as_ptr()) };
        match found.is_null() {
            true => Err(not_found!("undefined symbol: {name}")),
            false => Ok(found),
        }
    })
}
