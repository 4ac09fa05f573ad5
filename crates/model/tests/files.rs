//! Checkpoints, records and graphs in a file system that is not local.

use ferroflow_base::{Code, Result, Status, not_found};
use ferroflow_model::files::{self, FileInfo, FileSystem, file_system_error, register_file_system};
use ferroflow_model::{
    BundleWriter, CheckpointState, GraphFile, RecordCompression, RecordReader, RecordWriter,
    TensorBundle, has_checkpoint, merge_bundles,
};
use ferroflow_tensor::Tensor;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

/// Files by URI; folders are where files are.
#[derive(Default)]
struct Memory(Mutex<BTreeMap<String, Vec<u8>>>);

impl Memory {
    fn files(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.0.lock().expect("no panic before")
    }
}

fn missing(path: &str) -> Status {
    not_found!("{path} not found")
}

impl FileSystem for Memory {
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        let found = self.files().get(path).cloned();
        found.ok_or_else(|| missing(path))
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<()> {
        self.files().insert(path.to_string(), content.to_vec());
        Ok(())
    }

    fn stat(&self, path: &str) -> Result<FileInfo> {
        let files = self.files();
        let folder = format!("{path}/");
        let is_dir = files.keys().any(|name| name.starts_with(&folder));
        match files.get(path) {
            None if !is_dir => Err(missing(path)),
            content => Ok(FileInfo {
                length: content.map_or(0, |content| content.len() as u64),
                modified_nanos: 0,
                is_dir: content.is_none(),
            }),
        }
    }

    fn children(&self, path: &str) -> Result<Vec<String>> {
        let folder = format!("{path}/");
        let files = self.files();
        let inside = files.keys().filter_map(|name| name.strip_prefix(&folder));
        let direct = inside.filter(|name| !name.contains('/'));
        Ok(direct.map(str::to_string).collect())
    }

    fn matching(&self, pattern: &str) -> Result<Vec<String>> {
        Err(missing(pattern))
    }

    fn create_dir(&self, _: &str, _: bool) -> Result<()> {
        Ok(())
    }

    fn remove_file(&self, path: &str) -> Result<()> {
        let removed = self.files().remove(path);
        removed.map(drop).ok_or_else(|| missing(path))
    }

    fn remove_dir(&self, _: &str) -> Result<()> {
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let content = self.files().remove(from).ok_or_else(|| missing(from))?;
        self.write(to, &content)
    }
}

#[test]
fn everything_is_written_and_read() -> Result<()> {
    let memory = Arc::new(Memory::default());
    register_file_system("t", memory.clone())?;
    let twice = register_file_system("t", memory.clone());
    assert_eq!(twice.map_err(|e| e.code()), Err(Code::AlreadyExists));
    // A checkpoint that replaces one, and one that is merged of two.
    let prefix = "t://host/a/model";
    for value in [1.0f32, 2.0] {
        let mut writer = BundleWriter::create(prefix)?;
        writer.add("x", &Tensor::scalar(value))?;
        writer.finish()?;
    }
    let mut other = BundleWriter::create("t://host/b/model")?;
    other.add("y", &Tensor::scalar(5.0f32))?;
    other.finish()?;
    assert!(has_checkpoint(Path::new(prefix)));
    assert!(!has_checkpoint(Path::new("t://host/a/none")));
    let parts = ["t://host/a/model", "t://host/b/model"].map(String::from);
    merge_bundles(&parts, "t://host/c/all", true)?;
    let bundle = TensorBundle::open("t://host/c/all")?;
    assert_eq!(bundle.read("x")?.to_scalar::<f32>()?, 2.0);
    assert_eq!(bundle.read("y")?.to_scalar::<f32>()?, 5.0);
    let folder = Path::new("t://host/c");
    CheckpointState::record(folder, "all", 1)?;
    assert_eq!(
        CheckpointState::read(folder)?.unwrap_or_default().latest(),
        Some("all")
    );
    // Nothing temporary is left.
    let names: Vec<String> = memory.files().keys().cloned().collect();
    assert!(
        !names.iter().any(|name| name.contains("tempstate")),
        "{names:?}"
    );
    for compression in [RecordCompression::None, RecordCompression::Gzip] {
        let path = Path::new("t://host/records");
        let mut writer = RecordWriter::create(path, compression)?;
        writer.write(b"one")?;
        writer.write(b"two")?;
        writer.finish()?;
        let records = RecordReader::open(path, compression)?;
        assert_eq!(records.collect::<Result<Vec<_>>>()?, [b"one", b"two"]);
    }
    files::write("t://host/graph.pbtxt", "node { name: 'a' op: 'NoOp' }").map_err(error)?;
    let graph = GraphFile::open(Path::new("t://host/graph.pbtxt"))?.graph;
    assert_eq!(graph.node[0].op, "NoOp");
    let none = GraphFile::open(Path::new("t://host/none")).err();
    assert_eq!(
        none.map(|e| e.message().to_string()).as_deref(),
        Some("t://host/none not found")
    );
    let unknown = TensorBundle::open("unknown://a").err().map(|e| e.code());
    assert_eq!(unknown, Some(Code::Unimplemented));
    Ok(())
}

fn error(e: std::io::Error) -> Status {
    file_system_error(&e).unwrap_or_else(|| missing("local"))
}
