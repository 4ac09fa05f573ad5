//! Files of records: those that TensorFlow wrote, own ones, and damaged ones; files of events.

use ferroflow_base::{Code, Result};
use ferroflow_model::proto::{Event, GraphDef, NodeDef, event::What};
use ferroflow_model::{EventWriter, RecordCompression, RecordReader, RecordWriter};
use prost::Message;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};

const KINDS: [(&str, RecordCompression); 3] = [
    ("NONE", RecordCompression::None),
    ("ZLIB", RecordCompression::Zlib),
    ("GZIP", RecordCompression::Gzip),
];

/// A folder of its own that is removed afterwards.
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

fn unhex(json: &Json) -> Vec<u8> {
    let digits = json.as_str().expect("hexadecimal digits").as_bytes();
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(byte).collect()
}

fn theirs() -> (Vec<Vec<u8>>, Json) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/records.json");
    let json: Json = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let records = json["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(unhex)
        .collect();
    (records, json["files"].clone())
}

fn read(path: &Path, compression: RecordCompression) -> Result<Vec<Vec<u8>>> {
    RecordReader::open(path, compression)?.collect()
}

fn write(path: &Path, compression: RecordCompression, records: &[Vec<u8>]) {
    let mut writer = RecordWriter::create(path, compression).unwrap();
    records.iter().for_each(|r| writer.write(r).unwrap());
    writer.finish().unwrap();
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
                // A file that ends between two records is a shorter file.
                Ok(read) => assert!(records.starts_with(&read), "{name} cut to {keep}"),
                Err(e) => assert_eq!(e.code(), Code::DataLoss, "{name} cut to {keep}: {e}"),
            }
        }
        for bit in 0..whole.len() * 8 {
            let mut damaged = whole.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            std::fs::write(&path, &damaged).unwrap();
            match read(&path, compression) {
                // Headers of compressed files have bits without meaning.
                Ok(read) => assert!(records.starts_with(&read), "{name}: bit {bit}"),
                Err(e) => assert_eq!(e.code(), Code::DataLoss, "{name}: bit {bit}: {e}"),
            }
        }
    }
}

/// Writes a run; gives its file.
fn events(folder: &Path) -> PathBuf {
    let mut writer = EventWriter::create(folder).unwrap();
    let node = NodeDef {
        name: "x".into(),
        op: "NoOp".into(),
        ..Default::default()
    };
    let graph = GraphDef {
        node: vec![node],
        ..Default::default()
    };
    writer.graph(&graph).unwrap();
    writer.scalar("loss", 0, 2.5).unwrap();
    writer
        .scalars(1, &[("loss", 1.25), ("accuracy", 0.5)])
        .unwrap();
    writer.flush().unwrap();
    assert!(writer.summary(2, b"\xff").is_err());
    writer.path().to_path_buf()
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

/// For `oracle/records.py`: writes into the folder `FERROFLOW_OUT`.
#[test]
#[ignore = "writes files for another program"]
fn write_for_tensorflow() {
    let out = PathBuf::from(std::env::var("FERROFLOW_OUT").expect("a folder"));
    let (records, _) = theirs();
    for (name, compression) in KINDS {
        write(&out.join(name), compression, &records);
    }
    events(&out.join("run"));
}
