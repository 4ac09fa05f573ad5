//! The checkpoint writer: round trips, replacement, merging, and atomicity under interruption.

#[path = "written/checkpoints.rs"]
mod written;

use ferroflow_base::{Code, Result};
use ferroflow_model::{
    BundleWriter, CheckpointState, SliceReader, TensorBundle, TensorSlice, merge_bundles,
};
use ferroflow_tensor::{Bytes, Tensor, Variant};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use written::{copy, every, write_old, write_parts, write_sliced};

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(what: &str) -> Folder {
        let name = format!("ferroflow-writer-{}-{what}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("writable");
        Folder(path)
    }

    fn prefix(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(&self.0)
            .expect("it exists")
            .map(|e| {
                e.expect("readable")
                    .file_name()
                    .to_string_lossy()
                    .into_owned()
            })
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn assert_same(a: &str, b: &str) {
    let (a, b) = (
        TensorBundle::open(a).unwrap(),
        TensorBundle::open(b).unwrap(),
    );
    assert!(a.names().eq(b.names()));
    for name in a.names() {
        let (a, b) = (a.read(name).unwrap(), b.read(name).unwrap());
        assert!(a.same_value(&b), "{name}: {a:?} and {b:?}");
    }
}

#[test]
fn every_dtype_comes_back() {
    let folder = Folder::new("every");
    copy(&every(), &folder.prefix("copy")).unwrap();
    assert_same(&every(), &folder.prefix("copy"));
}

#[test]
fn the_old_format_comes_back() {
    let folder = Folder::new("old");
    let n = write_old(&folder.0.join("old")).unwrap();
    assert!(n >= 12, "{n} dtypes");
    // Flipped bits are errors, or in bytes that are not read.
    let path = folder.0.join("old");
    let bytes = std::fs::read(&path).unwrap();
    for at in (0..bytes.len()).step_by(7) {
        let mut bad = bytes.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, &bad).unwrap();
        if let Ok(reader) = SliceReader::open(std::slice::from_ref(&path)) {
            let _ = reader.read("float", None);
        }
    }
}

#[test]
fn slices_that_do_not_make_a_whole() {
    let folder = Folder::new("partial");
    let check = |parts: &[(&str, Vec<f32>)], code: Code, message: &str| {
        let prefix = folder.prefix("part");
        write_parts(&prefix, parts).unwrap();
        let error = TensorBundle::open(&prefix).unwrap().read("grid");
        let error = error.unwrap_err();
        assert_eq!(error.code(), code);
        assert!(error.message().contains(message), "{error}");
    };
    let six = vec![0f32; 6];
    check(
        &[("4 3 0,2:-", six.clone())],
        Code::InvalidArgument,
        "Does not have sufficient slices for partitioned tensor grid to restore in slice_spec: -:-",
    );
    check(
        &[
            ("4 3 0,2:-", six.clone()),
            ("4 3 1,2:-", six.clone()),
            ("4 3 2,2:-", six),
        ],
        Code::Internal,
        "Overlapping slices: existing slice = 0,2:-, new slice = 1,2:-",
    );
}

#[test]
fn slices_make_a_whole() {
    let folder = Folder::new("slices");
    let prefix = folder.prefix("sliced");
    write_sliced(&prefix).unwrap();
    let bundle = TensorBundle::open(&prefix).unwrap();
    let whole: Vec<f32> = (0..12).map(|i| i as f32).collect();
    assert_eq!(bundle.read("grid").unwrap().slice::<f32>().unwrap(), whole);
    let (shape, slice) = TensorSlice::parse_spec("4 3 1,2:1,2").unwrap();
    let part = bundle.read_slice("grid", &shape, &slice).unwrap();
    assert_eq!(part.slice::<f32>().unwrap(), [4.0, 5.0, 7.0, 8.0]);
}

#[test]
fn what_cannot_be_written_is_refused() {
    let folder = Folder::new("refused");
    let mut writer = BundleWriter::create(&folder.prefix("a")).unwrap();
    let x = Tensor::vector(&[1f32, 2.0]).unwrap();
    writer.add("x", &x).unwrap();
    assert_eq!(
        writer.add("x", &x).unwrap_err().code(),
        Code::InvalidArgument
    );
    assert_eq!(
        writer.add("", &x).unwrap_err().code(),
        Code::InvalidArgument
    );
    let (whole, slice) = TensorSlice::parse_spec("4 0,3").unwrap();
    let wrong = writer.add_slice("y", &whole, &slice, &x).unwrap_err();
    assert_eq!(wrong.code(), Code::InvalidArgument);
    let unknown = Variant(Some(Arc::new("neither a scalar nor a message")));
    let variant = Tensor::from_variants([1], vec![unknown]).unwrap();
    assert_eq!(
        writer.add("v", &variant).unwrap_err().code(),
        Code::Unimplemented
    );
    drop(writer);
    assert_eq!(
        folder.files(),
        [""; 0],
        "an unfinished checkpoint leaves nothing"
    );
    std::fs::write(folder.0.join("file"), "").unwrap();
    let below = folder.prefix("file/model");
    assert!(BundleWriter::create(&below).is_err());
    assert!(merge_bundles(&[], &folder.prefix("m"), true).is_err());
}

fn one(prefix: &str, value: i64) -> Result<()> {
    let mut writer = BundleWriter::create(prefix)?;
    writer.add("a", &Tensor::scalar(value))?;
    let words = vec![Bytes::from(value.to_string()); 2];
    writer.add("b/words", &Tensor::from_strings([2], words)?)?;
    writer.add("c", &Tensor::from_slice([4000], &vec![value; 4000])?)?;
    writer.finish()
}

/// Returns the value that all tensors of a checkpoint have.
fn value_of(prefix: &str) -> Result<i64> {
    let bundle = TensorBundle::open(prefix)?;
    let value = bundle.read("a")?.to_scalar::<i64>()?;
    assert!(
        bundle
            .read("c")?
            .slice::<i64>()?
            .iter()
            .all(|&v| v == value)
    );
    let words = bundle.read("b/words")?;
    assert_eq!(words.strings()?[1], value.to_string().as_bytes());
    Ok(value)
}

#[test]
fn a_checkpoint_replaces_another() {
    let folder = Folder::new("replace");
    let prefix = folder.prefix("model");
    let mut kept = Vec::new();
    for value in 0..5 {
        one(&prefix, value).unwrap();
        assert_eq!(value_of(&prefix).unwrap(), value);
        assert_eq!(folder.files().len(), 2, "{:?}", folder.files());
        // Tensors read from the previous files stay valid.
        kept.push(TensorBundle::open(&prefix).unwrap().read("c").unwrap());
    }
    for (value, kept) in kept.iter().enumerate() {
        assert!(
            kept.slice::<i64>()
                .unwrap()
                .iter()
                .all(|&v| v == value as i64)
        );
    }
}

#[test]
fn checkpoints_are_merged() {
    let folder = Folder::new("merge");
    for round in 0..3i64 {
        let parts: Vec<String> = (0..2)
            .map(|i| folder.prefix(&format!("t{i}/part")))
            .collect();
        for (i, part) in parts.iter().enumerate() {
            let mut writer = BundleWriter::create(part).unwrap();
            let value = Tensor::scalar(round * 10 + i as i64);
            writer.add(&format!("x{i}"), &value).unwrap();
            let (whole, slice) = TensorSlice::parse_spec(&format!("2 {i},1")).unwrap();
            let piece = Tensor::vector(&[round * 100 + i as i64]).unwrap();
            writer.add_slice("s", &whole, &slice, &piece).unwrap();
            writer.finish().unwrap();
        }
        merge_bundles(&parts, &folder.prefix("model"), true).unwrap();
        let bundle = TensorBundle::open(&folder.prefix("model")).unwrap();
        for i in 0..2 {
            let x = bundle.read(&format!("x{i}")).unwrap();
            assert_eq!(x.to_scalar::<i64>().unwrap(), round * 10 + i);
        }
        let s = bundle.read("s").unwrap();
        assert_eq!(s.slice::<i64>().unwrap(), [round * 100, round * 100 + 1]);
        assert_eq!(folder.files().len(), 3, "{:?}", folder.files());
    }
}

/// A checkpoint whose index is a folder cannot be finished: no data file is left, merged parts
/// stay.
#[test]
fn what_fails_late_leaves_nothing() {
    let folder = Folder::new("late");
    std::fs::create_dir(folder.0.join("model.index")).unwrap();
    let error = one(&folder.prefix("model"), 1).unwrap_err();
    assert!(error.message().contains("model.index"), "{error}");
    assert_eq!(folder.files(), ["model.index"]);
    one(&folder.prefix("part"), 2).unwrap();
    let parts = [folder.prefix("part")];
    merge_bundles(&parts, &folder.prefix("model"), false).unwrap_err();
    assert_eq!(value_of(&parts[0]).unwrap(), 2);
    let files = ["model.index", "part.data-00000-of-00001", "part.index"];
    assert_eq!(folder.files(), files);
}

/// Files of killed saves are removed by the next save if they are old and have no owner.
#[test]
fn what_killed_saves_left_is_removed() {
    let folder = Folder::new("stale");
    let mut ended = Command::new("true").spawn().expect("a process");
    ended.wait().unwrap();
    let (dead, own) = (ended.id(), std::process::id());
    let day = Duration::from_secs(100_000);
    let then = std::time::SystemTime::now().checked_sub(day).unwrap();
    let begun = [
        (
            format!("old.data-00000-of-00001.tempstate{dead}-0"),
            true,
            false,
        ),
        (format!("old.index.tempstate{dead}-17"), true, false),
        (format!("checkpoint.tempstate{dead}-3"), true, false),
        (format!("new.index.tempstate{dead}-1"), false, true),
        (format!("mine.index.tempstate{own}-900"), true, true),
        ("notes.tempstate".to_string(), true, true),
        ("notes.tempstate1-x".to_string(), true, true),
    ];
    for (name, is_old, _) in &begun {
        let file = std::fs::File::create(folder.0.join(name)).unwrap();
        if *is_old {
            file.set_modified(then).unwrap();
        }
    }
    one(&folder.prefix("model"), 1).unwrap();
    for (name, _, stays) in &begun {
        assert_eq!(folder.0.join(name).exists(), *stays, "{name}");
    }
}

#[test]
fn old_checkpoints_are_removed() {
    let folder = Folder::new("keep");
    for step in 1..=5 {
        let name = format!("model.ckpt-{step}");
        one(&folder.prefix(&name), step).unwrap();
        CheckpointState::record(&folder.0, &name, 2).unwrap();
    }
    let state = CheckpointState::read(&folder.0).unwrap().unwrap();
    assert_eq!(state.paths, ["model.ckpt-4", "model.ckpt-5"]);
    assert_eq!(folder.files().len(), 5, "{:?}", folder.files());
    assert_eq!(CheckpointState::read(&folder.0.join("none")).unwrap(), None);
    let odd = CheckpointState {
        paths: vec!["a\"b\\c\nd".into(), "größe".into()],
        timestamps: vec![1.5, 2.0],
    };
    odd.write(&folder.0).unwrap();
    assert_eq!(CheckpointState::read(&folder.0).unwrap(), Some(odd));
    std::fs::write(folder.0.join("checkpoint"), "nonsense").unwrap();
    assert!(CheckpointState::read(&folder.0).is_err());
}

/// Not a test: the process that the crash tests kill. Saves to one prefix repeatedly, and to
/// numbered ones.
#[test]
#[ignore = "runs until it is killed"]
fn crashing_child() {
    let Ok(folder) = std::env::var("FERROFLOW_CRASH") else {
        return;
    };
    let folder = PathBuf::from(folder);
    let prefix = folder.join("model").display().to_string();
    let first = value_of(&prefix).map_or(0, |v| v + 1);
    for value in first..first + 100_000 {
        if let Err(e) = one(&prefix, value) {
            println!("{}", e.code().name());
            return;
        }
        let name = format!("step-{value}");
        let numbered = folder.join(&name).display().to_string();
        let saved = one(&numbered, value);
        if saved
            .and_then(|()| CheckpointState::record(&folder, &name, 2).map(drop))
            .is_err()
        {
            return;
        }
    }
}

fn child(folder: &Folder, shell: Option<&str>) -> Command {
    let exe = std::env::current_exe().expect("known");
    let mut command = match shell {
        None => Command::new(exe),
        Some(before) => {
            let mut command = Command::new("sh");
            command
                .arg("-c")
                .arg(format!("{before}; exec \"$0\" \"$@\""))
                .arg(exe);
            command
        }
    };
    command
        .args(["crashing_child", "--exact", "--ignored", "--nocapture"])
        .env("FERROFLOW_CRASH", &folder.0)
        .stderr(Stdio::null());
    command
}

fn crash(rounds: u64) {
    let folder = Folder::new(&format!("crash{rounds}"));
    let prefix = folder.prefix("model");
    one(&prefix, 0).unwrap();
    let (mut last, mut random) = (0, 12345u64);
    for round in 0..rounds {
        let mut running = child(&folder, None)
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(5_000 + (random >> 33) % 60_000));
        running.kill().expect("killed");
        running.wait().expect("ended");
        let now = value_of(&prefix).unwrap_or_else(|e| panic!("round {round}: {e}"));
        assert!(now >= last, "round {round}: {now} after {last}");
        last = now;
        // Every checkpoint that the state file names exists and is complete.
        if let Some(state) = CheckpointState::read(&folder.0).unwrap() {
            let latest = state.latest().expect("it has one");
            let value =
                value_of(&folder.prefix(latest)).unwrap_or_else(|e| panic!("round {round}: {e}"));
            assert_eq!(latest, format!("step-{value}"));
        }
    }
    assert!(last > 0, "no checkpoint was written between the kills");
}

#[test]
fn a_kill_leaves_a_whole_checkpoint() {
    crash(10);
}

#[test]
#[ignore = "takes a minute"]
fn two_hundred_kills_leave_a_whole_checkpoint() {
    crash(200);
}

#[cfg(unix)]
#[test]
fn a_full_disk_loses_nothing() {
    let folder = Folder::new("full");
    let prefix = folder.prefix("model");
    one(&prefix, 41).unwrap();
    // A limit on file sizes simulates a full disk.
    let limited = child(&folder, Some("trap '' XFSZ; ulimit -f 8"));
    let out = { limited }.output().expect("it ran");
    let out = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.contains("RESOURCE_EXHAUSTED"), "{out}");
    assert_eq!(value_of(&prefix).unwrap(), 41);
    assert_eq!(folder.files().len(), 2, "{:?}", folder.files());
}

#[cfg(unix)]
#[test]
fn a_read_only_folder_is_an_error() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new("readonly");
    let mode = |m| std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(m)).unwrap();
    mode(0o555);
    // Root ignores read-only folders.
    let free = std::fs::write(folder.0.join("probe"), "").is_ok();
    let result = one(&folder.prefix("model"), 1);
    mode(0o755);
    match free {
        true => result.unwrap(),
        false => assert_eq!(result.unwrap_err().code(), Code::PermissionDenied),
    }
}
