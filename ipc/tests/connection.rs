//! A client and a daemon over a real socket.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

mod echo;

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use echo::{EchoConfig, EchoDaemon, Seen};
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with,
};
use tandem_ipc::channel::SendError;
use tandem_ipc::client::{ConnectError, Connection, Lost, WaitError};
use tandem_ipc::handshake::{Goodbye, Refusal};
use tandem_ipc::message::{ClientMessage, Finish, ServerMessage};
use tandem_ipc::request::{GenerateRequest, Input};
use tandem_ipc::ring::PushError;
use tandem_ipc::server::{HandshakeError, ListenError, Listener, ListenerConfig, RingSizes};

const TIMEOUT: Duration = Duration::from_secs(30);

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn connected(daemon: &EchoDaemon, app: &str) -> Connection {
    Connection::connect(&daemon.path, app, TIMEOUT).unwrap()
}

fn generate(id: u64, text: &str) -> ClientMessage {
    let request = Box::new(GenerateRequest::new(Input::Text(text.into())));
    ClientMessage::Generate { id, request }
}

fn next(client: &mut Connection) -> ServerMessage {
    client.recv_wait(Some(TIMEOUT)).unwrap().unwrap()
}

/// The tokens' texts until `Done`.
fn answer(client: &mut Connection) -> (Vec<String>, Finish) {
    let mut texts = Vec::new();
    loop {
        match next(client) {
            ServerMessage::Accepted { .. } => {}
            ServerMessage::Token { text, .. } => texts.push(text),
            ServerMessage::Done { finish, .. } => return (texts, finish),
            other => panic!("{other:?}"),
        }
    }
}

/// A socket connected to `daemon` that has said nothing yet.
fn raw_socket(daemon: &EchoDaemon) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, &SocketAddrUnix::new(&daemon.path).unwrap()).unwrap();
    socket
}

#[test]
fn an_answer_comes_word_by_word() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut client = connected(&daemon, "app");
    client.send(&generate(1, "tap the button")).unwrap();
    let (texts, finish) = answer(&mut client);
    assert_eq!(texts, ["tap", "the", "button"]);
    assert_eq!(finish, Finish::Stop);
}

#[test]
fn the_daemon_learns_who_connects() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let _client = connected(&daemon, "com.example.agent");
    match daemon.wait_for(|_| true) {
        Seen::Connected { app, pid, uid } => {
            assert_eq!(app, "com.example.agent");
            assert_eq!(pid as u32, std::process::id());
            assert_eq!(uid, uid_of_this_process());
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_answer_larger_than_the_ring_arrives_whole() {
    let folder = folder();
    let mut config = EchoConfig::default();
    config.listener.rings = RingSizes { request: 4096, response: 4096 };
    let daemon = EchoDaemon::start(folder.path().join("s"), config);
    let mut client = connected(&daemon, "app");
    client.send(&generate(1, "count 20000")).unwrap();
    let (texts, _) = answer(&mut client);
    assert_eq!(texts.len(), 20_000);
    assert_eq!(texts[19_999], "19999");
}

#[test]
fn a_prompt_of_one_mebibyte_fits_the_default_ring() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut client = connected(&daemon, "app");
    let word = "w".repeat(1 << 18);
    let prompt = [word.as_str(); 4].join(" ");
    assert!(prompt.len() > 1 << 20);
    client.send(&generate(1, &prompt)).unwrap();
    let (texts, _) = answer(&mut client);
    assert_eq!(texts, [word.as_str(); 4]);
}

#[test]
fn a_message_too_large_for_the_ring_is_an_error_and_nothing_else() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut client = connected(&daemon, "app");
    let error = client.send(&generate(1, &"x".repeat(3 << 20))).unwrap_err();
    assert!(error.is_too_large(), "{error}");
    client.send(&generate(2, "still here")).unwrap();
    assert_eq!(answer(&mut client).0, ["still", "here"]);
}

#[test]
fn a_full_request_ring_says_so_and_recovers() {
    let folder = folder();
    let mut config = EchoConfig::default();
    config.listener.rings.request = 4096;
    let daemon = EchoDaemon::start(folder.path().join("s"), config);
    let mut client = connected(&daemon, "app");
    let mut sent = 0;
    let mut full = 0;
    while sent < 5000 {
        match client.send(&ClientMessage::Ping { id: sent }) {
            Ok(()) => sent += 1,
            Err(SendError::Ring(PushError::Full { .. })) => {
                full += 1;
                client.link().wait(Some(TIMEOUT)).unwrap();
            }
            Err(other) => panic!("{other}"),
        }
    }
    for id in 0..sent {
        assert_eq!(next(&mut client), ServerMessage::Pong { id });
    }
    assert!(full > 0, "5000 pings went through 4096 bytes without a stop");
}

#[test]
fn a_dead_client_is_noticed() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut client = connected(&daemon, "short-lived");
    client.send(&generate(1, "hold")).unwrap();
    drop(client);
    daemon.wait_for(|seen| matches!(seen, Seen::Gone { app } if app == "short-lived"));
}

#[test]
fn a_dead_daemon_is_noticed_after_its_last_words_are_read() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut client = connected(&daemon, "app");
    client.send(&generate(1, "hold")).unwrap();
    client.send(&generate(2, "die")).unwrap();
    assert!(matches!(next(&mut client), ServerMessage::Accepted { id: 1, .. }));
    match client.recv_wait(Some(TIMEOUT)) {
        Err(WaitError::Lost(Lost::DaemonGone)) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_daemon_that_stops_says_goodbye() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut client = connected(&daemon, "app");
    daemon.wait_for(|seen| matches!(seen, Seen::Connected { .. }));
    drop(daemon);
    match client.recv_wait(Some(TIMEOUT)) {
        Err(WaitError::Lost(Lost::Goodbye(Goodbye::ShuttingDown { .. }))) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_stopping_daemon_sent_comes_before_its_goodbye() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let mut client = connected(&daemon, "app");
    assert!(client.recv().unwrap().is_none());
    client.send(&generate(1, "last words")).unwrap();
    client.link().wait(Some(TIMEOUT)).unwrap();
    drop(daemon);
    assert_eq!(answer(&mut client).0, ["last", "words"]);
    match client.recv_wait(Some(TIMEOUT)) {
        Err(WaitError::Lost(Lost::Goodbye(Goodbye::ShuttingDown { .. }))) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_client_of_another_version_is_refused_in_words() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let socket = raw_socket(&daemon);
    send(&socket, b"TANDEMhs\x63\0\0\0\x03app", SendFlags::empty()).unwrap();
    match daemon.wait_for(|_| true) {
        Seen::NotConnected(HandshakeError::Refused(Refusal::Version { daemon: 1, client: 99 })) => {}
        other => panic!("{other:?}"),
    }
    let mut bytes = [0; 64];
    let (len, _) = rustix::net::recv(&socket, &mut bytes[..], rustix::net::RecvFlags::empty()).unwrap();
    // Magic, daemon's version 1, Notice::Refused, Refusal::Version { 1, 99 }.
    assert_eq!(&bytes[..len], b"TANDEMhs\x01\0\0\0\x01\x00\x01\x63");
}

#[test]
fn a_first_packet_of_nonsense_is_refused_in_words() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    for packet in [&b"GET / HTTP/1.1"[..], b"TANDEMhs\x01\0\0\0\x03a\nb", &[7; 4000]] {
        let socket = raw_socket(&daemon);
        send(&socket, packet, SendFlags::empty()).unwrap();
        match daemon.wait_for(|_| true) {
            Seen::NotConnected(HandshakeError::Refused(Refusal::Malformed { .. })) => {}
            other => panic!("{other:?}"),
        }
    }
    let mut client = connected(&daemon, "app");
    client.send(&ClientMessage::Ping { id: 1 }).unwrap();
    assert_eq!(next(&mut client), ServerMessage::Pong { id: 1 });
}

#[test]
fn a_client_that_says_nothing_holds_nobody_up() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    let _silent = raw_socket(&daemon);
    let mut client = connected(&daemon, "app");
    client.send(&ClientMessage::Ping { id: 1 }).unwrap();
    assert_eq!(next(&mut client), ServerMessage::Pong { id: 1 });
}

#[test]
fn a_client_over_the_quota_is_refused_in_words() {
    let folder = folder();
    let config = EchoConfig { limit: 1, ..EchoConfig::default() };
    let daemon = EchoDaemon::start(folder.path().join("s"), config);
    let _first = connected(&daemon, "first");
    match Connection::connect(&daemon.path, "second", TIMEOUT) {
        Err(error @ ConnectError::Refused { .. }) => {
            assert!(error.is_retryable());
            assert!(error.to_string().contains("1 of 1 connections"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_socket_in_use_is_not_taken_over() {
    let folder = folder();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    match Listener::bind(&daemon.path, ListenerConfig::default()) {
        Err(error @ ListenError::InUse { .. }) => {
            assert!(error.to_string().contains("in use by another daemon"));
        }
        other => panic!("{other:?}"),
    }
    let mut client = connected(&daemon, "app");
    client.send(&ClientMessage::Ping { id: 1 }).unwrap();
    assert_eq!(next(&mut client), ServerMessage::Pong { id: 1 });
}

#[test]
fn a_stale_socket_file_is_replaced() {
    let folder = folder();
    let path = folder.path().join("s");
    // A std listener leaves its file behind.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let daemon = EchoDaemon::start(&path, EchoConfig::default());
    connected(&daemon, "app");
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let folder = folder();
    let path = folder.path().join("s");
    std::fs::write(&path, "precious").unwrap();
    match Listener::bind(&path, ListenerConfig::default()) {
        Err(ListenError::NotASocket { .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_path_that_is_too_long_names_the_limit() {
    let path = format!("/tmp/{}", "x".repeat(120));
    let error = Listener::bind(path, ListenerConfig::default()).unwrap_err();
    assert!(error.to_string().contains("at most 107"), "{error}");
}

#[test]
fn the_socket_file_has_the_mode_asked_for_and_goes_with_the_listener() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let path = folder.path().join("s");
    let config = ListenerConfig { mode: 0o666, ..ListenerConfig::default() };
    let listener = Listener::bind(&path, config).unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    drop(listener);
    assert!(!path.exists());
}

#[test]
fn a_listening_socket_can_be_adopted() {
    let folder = folder();
    let path = folder.path().join("s");
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let not_yet = socket.as_fd().try_clone_to_owned().unwrap();
    let error = Listener::from_fd(not_yet, ListenerConfig::default()).unwrap_err();
    assert!(error.to_string().contains("not listening"), "{error}");
    rustix::net::listen(&socket, 8).unwrap();
    let listener = Listener::from_fd(socket, ListenerConfig::default()).unwrap();
    let daemon = EchoDaemon::serve(path.clone(), listener, EchoConfig::default());
    connected(&daemon, "app");
    drop(daemon);
    assert!(path.exists(), "an adopted socket's file belongs to its maker");
}

#[test]
fn nobody_listening_is_an_error_that_says_what_to_do() {
    let folder = folder();
    let error = Connection::connect(folder.path().join("s"), "app", TIMEOUT).unwrap_err();
    assert!(error.is_retryable());
    assert!(error.to_string().contains("start tandemd"), "{error}");
}

#[test]
fn a_daemon_that_never_answers_is_a_timeout() {
    let folder = folder();
    let path = folder.path().join("s");
    let _listener = Listener::bind(&path, ListenerConfig::default()).unwrap();
    match Connection::connect(&path, "app", Duration::from_millis(50)) {
        Err(ConnectError::Timeout { .. }) => {}
        other => panic!("{other:?}"),
    }
}

fn uid_of_this_process() -> u32 {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").unwrap().uid()
}
