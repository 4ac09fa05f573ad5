//! Record files written by TensorFlow, by us, and damaged ones; event files.

#[path = "written/records.rs"]
mod written;

use ferroflow_base::{Code, Result};
use ferroflow_model::proto::{Event, event::What};
use ferroflow_model::{RecordCompression, RecordReader};
use prost::Message;
use std::path::{Path, PathBuf};
use written::{KINDS, events, theirs, unhex, write};

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(what: &str) -> Folder {
        let name = format!("ferroflow-records-{}-{what}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("writable");
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(path: &Path, compression: RecordCompression) -> Result<Vec<Vec<u8>>> {
    RecordReader::open(path, compression)?.collect()
}

#[test]
fn what_tensorflow_wrote_and_own_files() {
    let folder = Folder::new("read");
    let (records, files) = theirs();
    for (name, compression) in KINDS {
        assert_eq!(RecordCompression::from_name(name).unwrap(), compression);
        let path = folder.0.join(name);
        std::fs::write(&path, unhex(&files[name])).unwrap();
        assert_eq!(read(&path, compression).unwrap(), records, "{name}");
        write(&path, compression, &records);
        assert_eq!(read(&path, compression).unwrap(), records, "own {name}");
        write(&path, compression, &[]);
        assert!(read(&path, compression).unwrap().is_empty(), "empty {name}");
    }
    assert!(RecordCompression::from_name("LZ").is_err());
    let gone = RecordReader::open(&folder.0.join("gone"), RecordCompression::None);
    assert_eq!(gone.err().unwrap().code(), Code::NotFound);
}

#[test]
fn damage_is_found() {
    let folder = Folder::new("damage");
    let records = vec![b"first".to_vec(), vec![7; 40], b"last".to_vec()];
    for (name, compression) in KINDS {
        let path = folder.0.join(name);
        write(&path, compression, &records);
        let whole = std::fs::read(&path).unwrap();
        for keep in 0..whole.len() {
            std::fs::write(&path, &whole[..keep]).unwrap();
            match read(&path, compression) {
                // A file that ends between two records is just shorter.
                Ok(read) => assert!(records.starts_with(&read), "{name} cut to {keep}"),
                Err(e) => assert_eq!(e.code(), Code::DataLoss, "{name} cut to {keep}: {e}"),
            }
        }
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &damaged).unwrap();
            match read(&path, compression) {
                // Headers of compressed files have unused bits.
                Ok(read) => assert!(records.starts_with(&read), "{name}: bit {bit}"),
                Err(e) => assert_eq!(e.code(), Code::DataLoss, "{name}: bit {bit}: {e}"),
            }
        }
    }
}

#[test]
fn events_are_records() {
    let folder = Folder::new("events");
    let file = events(&folder.0.join("a/run"));
    let records = read(&file, RecordCompression::None).unwrap();
    let events: Vec<Event> = records
        .iter()
        .map(|r| Event::decode(&r[..]).unwrap())
        .collect();
    assert_eq!(events.len(), 4);
    assert_eq!(
        events[0].what,
        Some(What::FileVersion("brain.Event:2".into()))
    );
    assert!(matches!(events[1].what, Some(What::GraphDef(_))));
    assert_eq!(events[3].step, 1);
}
