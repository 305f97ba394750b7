//! The daemon in the hands of an operator: checked, supervised, reloaded, watched.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use rustix::process::Signal;
use serde_json::Value;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;
use tandem_tests::{Service, eventually, golden, programs, tandem, tandemd};

fn settings(more: &str) -> String {
    format!("model = {:?}\n{more}", golden("qwen35-a"))
}

#[test]
fn check_says_what_serving_would_use_and_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.toml");
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        tandemd(["check".as_ref(), "--config".as_ref(), file.as_os_str()])
    };
    let good = check(&settings("placement = \"chat\"\n[limits]\nclients = 3\n"));
    assert_eq!(good.code, Some(0), "{}", good.err);
    for word in ["t.toml is in order", "qwen35", "chat", "3 clients", "weights mapped"] {
        assert!(good.out.contains(word), "{word:?} is not in: {}", good.out);
    }
    check(&settings("clientz = 3\n")).failed(2, &["line 2", "clientz"]);
    check(&settings("board = \"../x\"\n")).failed(2, &["board", "../x"]);
    check(&settings("log = \"loud=very\"\n")).failed(2, &["loud=very"]);
    check("model = \"/nowhere.gguf\"\n").failed(2, &["/nowhere.gguf"]);
    check("").failed(2, &["no model"]);
}

#[test]
fn a_checked_daemon_is_not_disturbed() {
    let service = Service::start(&settings(""));
    let file = service.folder().join("tandemd.toml");
    assert_eq!(tandemd(["check".as_ref(), "--config".as_ref(), file.as_os_str()]).code, Some(0));
    service.client("after").ping().unwrap();
}

#[test]
fn sighup_takes_new_settings_and_keeps_the_old_when_they_are_wrong() {
    let service = Service::start(&settings("placement = \"chat\"\n"));
    let client = service.client("agent");
    let placement = || client.status().unwrap()["placement"].as_str().unwrap().to_owned();
    assert_eq!(placement(), "chat");

    service.settings(&settings("placement = \"sparse\"\ncontext = 64\n[limits]\nclients_per_user = 1\n"));
    service.signal(Signal::HUP);
    eventually("the new policy", || placement() == "sparse");
    let log = service.log();
    assert!(log.contains("restart") && log.contains("context"), "{log}");
    let refused = tandem(["status", "--socket", service.socket().to_str().unwrap()]);
    refused.failed(3, &["1 of 1"]);
    // Who was there goes on, with the new policy.
    client.generate(tandem_sdk::Request::text("tap").max_tokens(3)).unwrap().answer().unwrap();

    service.settings(&settings("placement = \"best\"\n"));
    service.signal(Signal::HUP);
    eventually("the complaint", || service.log().contains("the old ones stay"));
    assert_eq!(placement(), "sparse");
}

/// Everything a supervisor was told so far, the next message awaited.
fn told(supervisor: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let length = supervisor.recv(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..length]).into_owned()
}

fn until(supervisor: &UnixDatagram, what: &str) {
    // Far more than a healthy daemon sends before.
    let heard: Vec<String> = (0..1000).map(|_| told(supervisor)).take_while(|m| !m.contains(what)).collect();
    assert!(heard.len() < 1000, "{what:?} never came");
}

fn supervised(settings: &str, watchdog: Duration) -> (Service, UnixDatagram) {
    let mut supervisor = None;
    let service = Service::launch(settings, |command, folder| {
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        supervisor = Some(socket);
        command.env("NOTIFY_SOCKET", path).env("WATCHDOG_USEC", watchdog.as_micros().to_string());
    });
    (service, supervisor.unwrap())
}

#[test]
fn the_supervisor_hears_of_readiness_reload_life_and_end() {
    let (mut service, supervisor) = supervised(&settings(""), Duration::from_secs(1));
    until(&supervisor, "READY=1");
    until(&supervisor, "WATCHDOG=1");
    until(&supervisor, "WATCHDOG=1");
    service.signal(Signal::HUP);
    until(&supervisor, "RELOADING=1");
    until(&supervisor, "READY=1");
    service.signal(Signal::TERM);
    until(&supervisor, "STOPPING=1");
    assert_eq!(service.wait().code(), Some(0));
}

#[test]
fn a_pass_that_does_not_end_in_time_keeps_the_watchdog_from_its_word() {
    let more = "device = \"reference\"\ncontext = 2048\n";
    let (service, supervisor) = supervised(&settings(more), Duration::from_millis(40));
    until(&supervisor, "READY=1");
    service.until_serving();
    let client = service.client("slow");
    // A prompt of many tokens on the scalar device: passes of well over 10 ms.
    let request = tandem_sdk::Request::text("tap the button ".repeat(80)).max_tokens(1);
    client.generate(request).unwrap().answer().unwrap();
    eventually("the warning", || service.log().contains("a thread does not answer"));
    // Told again once it answers.
    until(&supervisor, "WATCHDOG=1");
}

#[test]
fn a_socket_that_a_supervisor_made_is_served_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("inherited");
    let socket = listening(&path);
    let service = Service::launch(&settings(""), |command, _| {
        // LISTEN_PID is the process's own id, which only a shell in its place can write.
        let daemon = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        let log = folder.path().join("log");
        *command = Command::new("sh");
        command.args(["-c", "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$@\" 3<&0 </dev/null", "sh"]);
        command.arg(daemon).args(arguments).stdin(socket).stderr(std::fs::File::create(log).unwrap());
    });
    let mut answered = false;
    eventually("the daemon answers on the socket it was given", || {
        let client = tandem_sdk::Client::builder(&path).app("a").connect();
        answered = client.is_ok_and(|c| c.ping().is_ok());
        answered
    });
    assert!(!service.socket().exists(), "it made a socket of its own");
    drop(service);
    assert!(path.exists(), "the supervisor's socket is gone");
}

fn listening(path: &std::path::Path) -> OwnedFd {
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType, bind, listen, socket};
    let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    bind(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    listen(&socket, 8).unwrap();
    socket
}

#[test]
fn the_board_is_read_while_the_daemon_is_stuck_and_after_its_death() {
    let name = format!("tandem-test-{}", std::process::id());
    let more = settings(&format!("board = {name:?}\n"));
    let mut service = Service::start(&more);
    let client = service.client("agent of the board");
    client.generate(tandem_sdk::Request::text("tap").max_tokens(3)).unwrap().answer().unwrap();
    let read = || tandem(["status", "--board", name.as_str(), "--json"]).json();
    eventually("the answered request is on the board", || read()["report"]["counters"]["answered"] == 1);

    service.signal(Signal::STOP);
    let stuck: Value = read();
    assert_eq!(stuck["pid"], service.pid());
    assert_eq!(stuck["phase"], "idle");
    assert_eq!(stuck["report"]["clients"][0]["app"], "agent of the board");
    let words = tandem(["status", "--board", name.as_str()]).out;
    assert!(words.contains("idle") && words.contains("agent of the board"), "{words}");

    service.signal(Signal::KILL);
    service.wait();
    assert_eq!(read()["alive"], false);
    let next = Service::start(&more);
    eventually("the next daemon takes the board over", || read()["pid"] == next.pid());
    drop(next);
    std::fs::remove_file(std::path::Path::new("/dev/shm").join(&name)).unwrap();
    tandem(["status", "--board", name.as_str()]).failed(3, &[&name, "board"]);
}

#[test]
fn a_crash_leaves_no_core_file_unless_the_settings_allow_one() {
    let limit = |service: &Service| {
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", service.pid())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
        line.split_whitespace().nth(4).unwrap().to_owned()
    };
    assert_eq!(limit(&Service::start(&settings(""))), "0");
    let own = std::fs::read_to_string("/proc/self/limits").unwrap();
    let own = own.lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
    let allowed = limit(&Service::start(&settings("core_dumps = true\n")));
    assert_eq!(allowed, own.split_whitespace().nth(4).unwrap());
}

/// Whether a journal message holds a field, in the form with its length before it.
fn has(message: &str, name: &str, value: &str) -> bool {
    let length = String::from_utf8_lossy(&(value.len() as u64).to_le_bytes()).into_owned();
    message.contains(&format!("{name}\n{length}{value}\n"))
}

/// The daemon's standard error is the journal as far as it can tell, and the journal's socket,
/// in a mount namespace of its own, is this test's.
#[test]
fn the_journal_gets_every_number_in_a_field_of_its_own() {
    let mut journal = None;
    let service = Service::launch(&settings(""), |command, folder| {
        let place = folder.join("journal");
        std::fs::create_dir(&place).unwrap();
        let socket = UnixDatagram::bind(place.join("socket")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        journal = Some(socket);
        let log = std::fs::File::create(folder.join("log")).unwrap();
        let meta = log.metadata().unwrap();
        let daemon = command.get_program().to_owned();
        let arguments: Vec<_> = command.get_args().map(ToOwned::to_owned).collect();
        *command = Command::new("unshare");
        let script = "mount -t tmpfs none /run && mkdir -p /run/systemd/journal && \
                      mount --bind \"$0\" /run/systemd/journal && exec \"$@\"";
        command.args(["--mount", "sh", "-c", script]).arg(&place).arg(daemon).args(arguments);
        command.env("JOURNAL_STREAM", format!("{}:{}", meta.dev(), meta.ino())).stderr(log);
    });
    let journal = journal.unwrap();
    let mut message = String::new();
    while !message.contains("serving") {
        message = told(&journal);
    }
    assert!(has(&message, "SYSLOG_IDENTIFIER", "tandemd"), "{message}");
    let _client = service.client("agent of the journal");
    while !message.contains("client connected") {
        message = told(&journal);
    }
    assert!(has(&message, "TANDEM_APP", "agent of the journal"), "{message}");
    assert!(has(&message, "TANDEM_PID", &std::process::id().to_string()), "{message}");
    assert_eq!(service.log(), "", "lines on standard error besides");
}

#[test]
fn man_pages_come_from_the_command_lines_themselves() {
    let folder = tempfile::tempdir().unwrap();
    let made = tandem(["man".as_ref(), folder.path().as_os_str()]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    let main = page("man1/tandem.1");
    for command in ["generate", "replay", "bench", "model", "status", "top"] {
        assert!(main.contains(&format!("tandem\\-{command}")), "{command}: {main}");
        page(&format!("man1/tandem-{command}.1"));
    }
    let daemon = page("man8/tandemd.8");
    for word in ["\\-\\-config", "SIGHUP", "Exit codes"] {
        assert!(daemon.contains(word), "{word}: {daemon}");
    }
    assert!(!daemon.contains("owner"), "a hidden flag is shown");
    assert!(programs().tandem.exists());
}
