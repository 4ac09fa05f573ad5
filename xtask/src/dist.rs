//! `cargo xtask dist`: `libtensorflow` in the layout of TensorFlow's own archive.
//!
//! One library does the work, `libtensorflow.so.2`. Its functions have two versions: `VERS_1.0`, which
//! programs ask for that were linked with TensorFlow's archive, and `tensorflow`, the version of
//! `libtensorflow_cc.so.2` of TensorFlow's Python package. The other names are links to it, or a library that
//! only needs it.

use crate::{Res, cargo, command, root};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of TensorFlow whose C API this is.
const VERSION: &str = "2.21.0";
const LIBRARY: &str = "libtensorflow.so.2";
const FRAMEWORK: &str = "libtensorflow_framework.so.2";

/// Builds the library and writes it with its headers and an archive of both. `--debug` writes no archive and no
/// static library; `--archive FILE` links a static library that was built before.
pub fn run(args: &[String]) -> Res {
    let mut folder = target().join("dist");
    let mut profile = "release";
    let mut built = None;
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        let usage = "usage: cargo xtask dist [DIR] [--debug] [--archive FILE]";
        match arg.as_str() {
            "--debug" => profile = "debug",
            "--archive" => built = Some(PathBuf::from(args.next().ok_or(usage)?)),
            flag if flag.starts_with('-') => return Err(usage.to_string()),
            dir => folder = std::path::absolute(dir).map_err(|e| format!("{dir}: {e}"))?,
        }
    }
    let dist = Dist::new(&folder)?;
    if let Some(archive) = built {
        return dist.link(&archive);
    }
    let release: &[&str] = if profile == "release" {
        &["--release"]
    } else {
        &[]
    };
    cargo(
        "libtensorflow",
        &[&["build", "-p", "ferroflow-capi"], release].concat(),
    )?;
    let archive = target().join(profile).join("libtensorflow.a");
    dist.link(&archive)?;
    if profile == "release" {
        dist.archive(&archive)?;
        dist.tarball()?;
    }
    eprintln!("== wrote {}", folder.display());
    Ok(())
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or(root().join("target"), PathBuf::from)
}

/// The folder that is written.
struct Dist {
    folder: PathBuf,
    lib: PathBuf,
    /// Files that only linking needs.
    work: PathBuf,
    /// The names that TensorFlow's libraries export.
    names: Vec<String>,
}

impl Dist {
    fn new(folder: &Path) -> Res<Dist> {
        let lib = folder.join("lib");
        let work = target().join("dist-work");
        for folder in [&lib, &work] {
            fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        let names = root().join("crates/capi/exports.txt");
        let names = fs::read_to_string(&names).map_err(|e| format!("{}: {e}", names.display()))?;
        Ok(Dist {
            folder: folder.to_path_buf(),
            lib,
            work,
            names: names.lines().map(str::to_string).collect(),
        })
    }

    /// Writes what programs need that load the library.
    fn link(&self, archive: &Path) -> Res {
        self.shared(archive)?;
        self.framework()?;
        self.texts()
    }

    /// Links the shared library from all objects of the static one.
    fn shared(&self, archive: &Path) -> Res {
        eprintln!("== linking {LIBRARY}");
        let versions = self.write("versions.map", &versions())?;
        let aliases = self.write("aliases.s", &aliases(&self.names))?;
        let mut cc = compiler();
        cc.args(["-shared", "-o"]).arg(self.lib.join(LIBRARY));
        cc.arg(format!("-Wl,-soname,{LIBRARY}"));
        cc.arg(format!("-Wl,--version-script={}", versions.display()));
        cc.args([
            "-Wl,--gc-sections",
            "-Wl,-Bsymbolic",
            "-Wl,-z,defs",
            "-Wl,-z,relro,-z,now,-z,noexecstack",
            "-Wl,--strip-all",
            "-Wl,--as-needed",
        ]);
        cc.arg(aliases).arg("-Wl,--whole-archive").arg(archive);
        cc.args(["-Wl,--no-whole-archive", "-lgcc_s", "-lm", "-lc"]);
        command(&mut cc)?;
        for name in [
            "libtensorflow.so",
            "libtensorflow_cc.so",
            "libtensorflow_cc.so.2",
        ] {
            link(LIBRARY, &self.lib.join(name))?;
        }
        Ok(())
    }

    /// Links the library of the second name, which exports nothing itself.
    fn framework(&self) -> Res {
        let source = self.write("framework.c", "")?;
        let mut cc = compiler();
        cc.args(["-shared", "-nostdlib", "-o"])
            .arg(self.lib.join(FRAMEWORK))
            .arg(source)
            .arg(format!("-Wl,-soname,{FRAMEWORK}"))
            .args(["-Wl,--strip-all", "-Wl,--no-as-needed", "-L"])
            .arg(&self.lib)
            .arg("-ltensorflow");
        command(&mut cc)?;
        link(FRAMEWORK, &self.lib.join("libtensorflow_framework.so"))
    }

    /// Writes the static library: one object, in which only the API's names are visible, so that a program
    /// that has another Rust library links.
    fn archive(&self, archive: &Path) -> Res {
        eprintln!("== linking libtensorflow.a");
        let object = self.work.join("libtensorflow.o");
        let list = |f: &dyn Fn(&str) -> String| {
            self.names
                .iter()
                .map(|name| f(name) + "\n")
                .collect::<String>()
        };
        let roots = self.write("roots.txt", &list(&|name| format!("--undefined={name}")))?;
        let visible = self.write("visible.txt", &list(&str::to_string))?;
        let mut ld = Command::new("ld");
        ld.args(["-r", "-z", "noexecstack", "--gc-sections", "-o"])
            .arg(&object)
            .arg(format!("@{}", roots.display()))
            .arg("--whole-archive")
            .arg(archive);
        command(&mut ld)?;
        let mut objcopy = Command::new("objcopy");
        // Bitcode of the standard library: once linked together, tools fail to read it.
        objcopy
            .args(["--strip-unneeded", "--remove-section=.llvmbc"])
            .arg("--remove-section=.llvmcmd")
            .arg(format!("--keep-global-symbols={}", visible.display()))
            .arg(&object);
        command(&mut objcopy)?;
        // The second one is empty: `-ltensorflow_framework` must be found.
        let objects: [(&str, &[&Path]); 2] = [
            ("libtensorflow.a", &[&object]),
            ("libtensorflow_framework.a", &[]),
        ];
        for (name, objects) in objects {
            let archive = self.lib.join(name);
            if archive.exists() {
                fs::remove_file(&archive).map_err(|e| format!("{}: {e}", archive.display()))?;
            }
            command(Command::new("ar").arg("rcs").arg(archive).args(objects))?;
        }
        Ok(())
    }

    /// Writes headers, the licence and the description for `pkg-config`.
    fn texts(&self) -> Res {
        copy_folder(
            &root().join("crates/capi/include"),
            &self.folder.join("include"),
        )?;
        let licence = (root().join("LICENSE"), self.folder.join("LICENSE"));
        fs::copy(&licence.0, &licence.1).map_err(|e| format!("{}: {e}", licence.0.display()))?;
        let folder = self.lib.join("pkgconfig");
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        for (name, library) in [
            ("tensorflow", "tensorflow"),
            ("tensorflow_cc", "tensorflow_cc"),
        ] {
            let path = folder.join(format!("{name}.pc"));
            fs::write(&path, description(library))
                .map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(())
    }

    fn tarball(&self) -> Res {
        let arch = std::env::consts::ARCH;
        let name = format!("libtensorflow-cpu-linux-{arch}.tar.gz");
        eprintln!("== writing {name}");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(&self.folder).arg("-czf");
        tar.arg(self.folder.join(name))
            .args(["LICENSE", "include", "lib"]);
        command(&mut tar)
    }

    fn write(&self, name: &str, text: &str) -> Res<PathBuf> {
        let path = self.work.join(name);
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }
}

/// The version script: what has one of TensorFlow's prefixes is visible.
fn versions() -> String {
    "VERS_1.0 { global: TF_*; TFE_*; TSL_*; local: *; };\n\
     tensorflow { };\n"
        .to_string()
}

/// A second version of each function, which jumps to the first.
fn aliases(names: &[String]) -> String {
    let jump = match std::env::consts::ARCH {
        "aarch64" => "b",
        _ => "jmp",
    };
    let mut text = String::from(".section .note.GNU-stack,\"\",@progbits\n");
    for name in names {
        let alias = format!("ferroflow_{name}");
        let _ = write!(
            text,
            ".section .text.{alias},\"ax\",@progbits\n\
             .weak {name}\n\
             .globl {alias}\n.type {alias},@function\n\
             .symver {alias},{name}@tensorflow\n\
             {alias}:\n\t{jump} {name}\n\
             .size {alias},.-{alias}\n"
        );
    }
    text
}

fn description(library: &str) -> String {
    format!(
        "prefix=${{pcfiledir}}/../..\n\
         libdir=${{prefix}}/lib\n\
         includedir=${{prefix}}/include\n\n\
         Name: TensorFlow\n\
         Version: {VERSION}\n\
         Description: TensorFlow's C API, by Ferroflow\n\
         Libs: -L${{libdir}} -l{library} -ltensorflow_framework\n\
         Libs.private: -lgcc_eh -lm -lpthread -ldl -lc\n\
         Cflags: -I${{includedir}}\n"
    )
}

/// The C compiler, with the fast linker that comes with Rust where there is one.
fn compiler() -> Command {
    let mut cc = Command::new("cc");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_string());
    let sysroot = Command::new(rustc).args(["--print", "sysroot"]).output();
    if let Ok(sysroot) = sysroot {
        let sysroot = String::from_utf8_lossy(&sysroot.stdout);
        let host = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(host);
        let folder = folder.join("bin/gcc-ld");
        if folder.join("ld.lld").exists() {
            // Functions with the same code are kept once.
            cc.args(["-fuse-ld=lld", "-Wl,--icf=all"])
                .arg(format!("-B{}", folder.display()));
        }
    }
    cc
}

fn link(to: &str, path: &Path) -> Res {
    if path.symlink_metadata().is_ok() {
        fs::remove_file(path).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    std::os::unix::fs::symlink(to, path).map_err(|e| format!("{}: {e}", path.display()))
}

fn copy_folder(from: &Path, to: &Path) -> Res {
    fs::create_dir_all(to).map_err(|e| format!("{}: {e}", to.display()))?;
    let entries = fs::read_dir(from).map_err(|e| format!("{}: {e}", from.display()))?;
    for entry in entries {
        let path = entry.map_err(|e| e.to_string())?.path();
        let to = to.join(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => copy_folder(&path, &to)?,
            false => {
                fs::copy(&path, &to).map_err(|e| format!("{}: {e}", path.display()))?;
            }
        }
    }
    Ok(())
}
