//! Runs the `console` blocks of README.md and the book and compares what they print.
//!
//! A line `$ COMMAND` is run by `sh` in a temporary directory that the blocks of a file share; the
//! lines below it are the expected output, standard error last. `…` within a line stands for any
//! text, a line `…` for any number of lines. `$ cat FILE` writes FILE if it does not exist.
//! `ferroflow server` and `serve` take free ports and are stopped once they have printed the expected lines.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A working directory with `examples/` and the binary in `bin/`, removed on drop.
struct Workspace(PathBuf);

impl Workspace {
    fn new(name: &str) -> Workspace {
        let folder = format!("ferroflow-book-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(folder.join("bin")).expect("a new directory");
        let link = |target: &Path, name: &str| {
            std::os::unix::fs::symlink(target, folder.join(name)).expect("a link");
        };
        link(&root().join("examples"), "examples");
        link(env!("CARGO_BIN_EXE_ferroflow").as_ref(), "bin/ferroflow");
        Workspace(folder)
    }

    fn shell(&self, command: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = self.0.join("bin");
        let mut shell = Command::new("sh");
        shell
            .args(["-c", command])
            .env("PATH", format!("{}:{path}", bin.display()))
            .current_dir(&self.0)
            .stdin(Stdio::null());
        shell
    }

    /// Returns what `command` prints.
    fn output(&self, command: &str, expected: &[&str]) -> String {
        if let Some(file) = command.strip_prefix("cat ") {
            let file = self.0.join(file);
            if !file.exists() {
                std::fs::write(file, expected.join("\n") + "\n").expect("writable");
            }
        }
        if command.starts_with("ferroflow serve") {
            let n = expected.iter().filter(|l| **l != "…").count();
            return self.server(command, n);
        }
        let output = self.shell(command).output().expect("sh starts");
        let text = [output.stdout, output.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns the first `n` lines that a server on free ports prints, and stops it.
    fn server(&self, command: &str, n: usize) -> String {
        let mut words: Vec<&str> = command.split(' ').collect();
        for i in 1..words.len() {
            if words[i - 1].ends_with("port") {
                words[i] = "0";
            }
        }
        // With `exec` the child is the server, not the shell.
        let mut server = self
            .shell(&format!("exec {}", words.join(" ")))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sh starts");
        let out = BufReader::new(server.stdout.take().expect("piped"));
        let lines: Vec<String> = out.lines().take(n).map_while(Result::ok).collect();
        server.kill().expect("it runs");
        server.wait().expect("it was killed");
        lines.join("\n")
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.canonicalize().expect("the repository")
}

/// Returns the commands of the `console` blocks, each with its line number and expected output.
fn commands(text: &str) -> Vec<(usize, &str, Vec<&str>)> {
    let mut commands: Vec<(usize, &str, Vec<&str>)> = Vec::new();
    let mut is_inside = false;
    for (i, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_inside = line == "```console";
        } else if let (true, Some(command)) = (is_inside, line.strip_prefix("$ ")) {
            commands.push((i + 1, command, Vec::new()));
        } else if let (true, Some(last)) = (is_inside, commands.last_mut()) {
            last.2.push(line);
        }
    }
    commands
}

/// Replaces the port at the end of a line, if any.
fn without_port(line: &str) -> String {
    match line.rsplit_once(':') {
        Some((head, port)) if port.parse::<u16>().is_ok() => format!("{head}:PORT"),
        _ => line.to_string(),
    }
}

/// Returns whether `line` matches `pattern`, in which `…` stands for any text.
fn line_matches(pattern: &str, line: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('…') else {
        return pattern == line;
    };
    let Some(line) = line.strip_prefix(head) else {
        return false;
    };
    let mut ends = (0..=line.len()).filter(|&i| line.is_char_boundary(i));
    ends.any(|i| line_matches(rest, &line[i..]))
}

/// Returns whether `lines` match `pattern`, in which a line `…` stands for any number of lines.
fn lines_match(pattern: &[&str], lines: &[String]) -> bool {
    match pattern {
        [] => lines.is_empty(),
        ["…", rest @ ..] => (0..=lines.len()).any(|i| lines_match(rest, &lines[i..])),
        [first, rest @ ..] => lines.split_first().is_some_and(|(line, others)| {
            line_matches(&without_port(first), line) && lines_match(rest, others)
        }),
    }
}

fn check(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).expect("readable");
    let name = path.file_stem().expect("a file").to_string_lossy();
    let workspace = Workspace::new(&name);
    let commands = commands(&text);
    for (line, command, expected) in &commands {
        let found = workspace.output(command, expected);
        let lines: Vec<String> = found.lines().map(without_port).collect();
        assert!(
            lines_match(expected, &lines),
            "{}:{line}: $ {command}\n{found}",
            path.display()
        );
    }
    commands.len()
}

#[test]
fn console_blocks() {
    let chapters = root().join("docs/book/src");
    let mut n = check(&root().join("README.md"));
    for chapter in std::fs::read_dir(chapters).expect("the book") {
        n += check(&chapter.expect("readable").path());
    }
    assert!(n > 10, "only {n} commands");
}

#[test]
fn wildcards() {
    let lines = ["a b", "c", "d:80"].map(without_port);
    for (pattern, expected) in [
        (&["a b", "c", "d:81"][..], true),
        (&["a…", "…"], true),
        (&["…"], true),
        (&["…", "…:80"], true),
        (&["…", "…:x"], false),
        (&["a b", "c"], false),
        (&["…b", "…", "c", "d…"], true),
        (&[], false),
    ] {
        assert_eq!(lines_match(pattern, &lines), expected, "{pattern:?}");
    }
}
