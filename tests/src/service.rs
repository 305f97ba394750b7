//! A daemon as an operator runs it: settings file, socket path, log, signals.

use crate::programs::{eventually, programs, signal};
use rustix::process::Signal;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use tandem_sdk::Client;

/// A running `tandemd` with a folder of its own; killed when dropped.
#[derive(Debug)]
pub struct Service {
    child: Child,
    folder: tempfile::TempDir,
}

impl Service {
    /// Starts `tandemd` with these lines in its settings file, and waits until it serves.
    ///
    /// # Panics
    /// If it does not serve.
    pub fn start(settings: &str) -> Service {
        let service = Service::launch(settings, |_, _| {});
        service.until_serving();
        service
    }

    /// Starts `tandemd`; `adjust` may change the command, and is told the folder.
    ///
    /// # Panics
    /// If it does not start.
    pub fn launch(settings: &str, adjust: impl FnOnce(&mut Command, &Path)) -> Service {
        let folder = tempfile::tempdir().unwrap_or_else(|e| panic!("a folder: {e}"));
        let path = folder.path();
        write(&path.join("tandemd.toml"), &format!("socket = {:?}\n{settings}", path.join("socket")));
        let log = File::create(path.join("log")).unwrap_or_else(|e| panic!("log: {e}"));
        let mut command = Command::new(&programs().tandemd);
        command.arg("--config").arg(path.join("tandemd.toml")).stdin(Stdio::null()).stderr(log);
        adjust(&mut command, path);
        let child = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Service { child, folder }
    }

    /// Waits until it serves.
    ///
    /// # Panics
    /// If it never does; the message holds its log.
    pub fn until_serving(&self) {
        eventually(&format!("the daemon serves; its log: {}", self.log()), || {
            Client::builder(self.socket()).app("probe").connect().is_ok_and(|c| c.ping().is_ok())
        });
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// A connected client.
    ///
    /// # Panics
    /// If it is refused.
    pub fn client(&self, app: &str) -> Client {
        Client::builder(self.socket()).app(app).connect().unwrap_or_else(|e| panic!("{app}: {e}"))
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.folder.path().join("log")).unwrap_or_default())
            .into_owned()
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Writes other settings.
    pub fn settings(&self, settings: &str) {
        write(&self.folder.path().join("tandemd.toml"), &format!("socket = {:?}\n{settings}", self.socket()));
    }

    /// Sends it a signal.
    pub fn signal(&self, which: Signal) {
        signal(self.pid(), which);
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If the system does not tell.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap_or_else(|e| panic!("waiting for the daemon: {e}"))
    }

    /// Open descriptors.
    ///
    /// # Panics
    /// If it has ended.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap_or_else(|e| panic!("its descriptors: {e}"))
            .count()
    }

    /// A figure of `/proc/PID/status` in KiB, such as `VmRSS`.
    ///
    /// # Panics
    /// If there is none.
    pub fn kib(&self, figure: &str) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(figure)?.strip_prefix(':'));
        let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        number.unwrap_or_else(|| panic!("no {figure} in: {text}"))
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
