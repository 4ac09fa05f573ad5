//! [`CheckpointState`]: the list of a folder's checkpoints (TensorFlow:
//! `python/checkpoint/checkpoint_management.py`).

use crate::atomic_file::{io_error, write_file};
use crate::bundle_writer::{files_of, index_path};
use crate::files;
use ferroflow_base::{Result, data_loss, failed_precondition};
use std::path::{Path, PathBuf};

/// The checkpoints of a folder, as recorded in its file `checkpoint`.
///
/// ```
/// use ferroflow_model::CheckpointState;
/// let folder = std::env::temp_dir().join(format!("ferroflow-state-{}", std::process::id()));
/// let mut state = CheckpointState::default();
/// state.paths = vec!["model.ckpt-1".into(), "model.ckpt-2".into()];
/// state.write(&folder)?;
/// let read = CheckpointState::read(&folder)?.unwrap();
/// assert_eq!(read.latest().unwrap(), "model.ckpt-2");
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CheckpointState {
    /// The prefixes of the checkpoints, relative to the folder or absolute, oldest first.
    pub paths: Vec<String>,
    /// The time of each, in seconds since 1970; empty if unknown.
    pub timestamps: Vec<f64>,
}

impl CheckpointState {
    /// Returns the prefix of the last checkpoint.
    pub fn latest(&self) -> Option<&str> {
        self.paths.last().map(String::as_str)
    }

    /// Returns the path of the folder's state file.
    fn path(folder: &Path) -> PathBuf {
        folder.join("checkpoint")
    }

    /// Reads the state file of a folder; `None` if there is none.
    ///
    /// # Errors
    /// DATA_LOSS or FAILED_PRECONDITION if the content is not valid; other file system errors.
    pub fn read(folder: &Path) -> Result<Option<CheckpointState>> {
        let path = Self::path(folder);
        let text = match files::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(io_error(&path, &e)),
        };
        let text = String::from_utf8(text)
            .map_err(|_| data_loss!("{} is not a checkpoint state file", path.display()))?;
        let (mut state, mut latest) = (CheckpointState::default(), None);
        for line in text
            .lines()
            .map(str::trim)
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
        {
            let bad = || failed_precondition!("{}: cannot read '{line}'", path.display());
            let (key, value) = line.split_once(':').ok_or_else(bad)?;
            let value = value.trim();
            match key.trim() {
                "model_checkpoint_path" => latest = Some(unquoted(value).ok_or_else(bad)?),
                "all_model_checkpoint_paths" => {
                    state.paths.push(unquoted(value).ok_or_else(bad)?);
                }
                "all_model_checkpoint_timestamps" => {
                    state.timestamps.push(value.parse().map_err(|_| bad())?);
                }
                _ => {}
            }
        }
        if let Some(latest) = latest
            && state.latest() != Some(&latest)
        {
            state.timestamps.clear();
            state.paths.retain(|p| *p != latest);
            state.paths.push(latest);
        }
        Ok(Some(state))
    }

    /// Writes the state file of a folder.
    ///
    /// # Errors
    /// A file system error, such as PERMISSION_DENIED.
    pub fn write(&self, folder: &Path) -> Result<()> {
        let latest = self.latest().unwrap_or_default();
        let mut text = format!("model_checkpoint_path: {}\n", quoted(latest));
        for path in &self.paths {
            text += &format!("all_model_checkpoint_paths: {}\n", quoted(path));
        }
        if self.timestamps.len() == self.paths.len() {
            for time in &self.timestamps {
                text += &format!("all_model_checkpoint_timestamps: {time:?}\n");
            }
        }
        write_file(&Self::path(folder), text.as_bytes())
    }

    /// Records a new checkpoint as the latest, and removes all but the last `keep` recorded ones.
    ///
    /// # Errors
    /// Those of [`CheckpointState::read`] and [`CheckpointState::write`].
    pub fn record(folder: &Path, prefix: &str, keep: usize) -> Result<CheckpointState> {
        let mut state = Self::read(folder)?.unwrap_or_default();
        let now = std::time::UNIX_EPOCH
            .elapsed()
            .map_or(0.0, |t| t.as_secs_f64());
        if state.timestamps.len() != state.paths.len() {
            state.timestamps = vec![now; state.paths.len()];
        }
        if let Some(at) = state.paths.iter().position(|p| p == prefix) {
            state.paths.remove(at);
            state.timestamps.remove(at);
        }
        state.paths.push(prefix.to_string());
        state.timestamps.push(now);
        let n_old = state.paths.len().saturating_sub(keep.max(1));
        let old: Vec<String> = state.paths.drain(..n_old).collect();
        state.timestamps.drain(..n_old);
        state.write(folder)?;
        for prefix in old {
            remove_checkpoint(&folder.join(prefix).display().to_string());
        }
        Ok(state)
    }
}

/// Removes the files of a checkpoint: the index first, since the rest is unreachable without it.
pub fn remove_checkpoint(prefix: &str) {
    let files = files_of(prefix);
    if files::remove_file(index_path(prefix)).is_ok() {
        for file in files {
            let _ = files::remove_file(file);
        }
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' => out += "\\\"",
            b'\\' => out += "\\\\",
            b'\n' => out += "\\n",
            0x20..=0x7e => out.push(char::from(byte)),
            _ => out += &format!("\\{byte:03o}"),
        }
    }
    out + "\""
}

fn unquoted(text: &str) -> Option<String> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    let (mut out, mut bytes) = (Vec::new(), inner.bytes());
    while let Some(byte) = bytes.next() {
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        match bytes.next()? {
            b'n' => out.push(b'\n'),
            b't' => out.push(b'\t'),
            b'r' => out.push(b'\r'),
            digit @ b'0'..=b'7' => {
                let mut value = u32::from(digit - b'0');
                let mut ahead = bytes.clone();
                for _ in 0..2 {
                    match ahead.next() {
                        Some(d @ b'0'..=b'7') => {
                            value = value * 8 + u32::from(d - b'0');
                            bytes = ahead.clone();
                        }
                        _ => break,
                    }
                }
                out.push(u8::try_from(value).ok()?);
            }
            other => out.push(other),
        }
    }
    String::from_utf8(out).ok()
}
