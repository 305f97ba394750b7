//! The SDK against a daemon that echoes, over the real rings.

// A failed unwrap is a failed test.
#![allow(clippy::unwrap_used)]

#[path = "../../../ipc/tests/echo/mod.rs"]
mod echo;

use std::time::Duration;

use echo::{EchoConfig, EchoDaemon, Seen};
use tandem_sdk::{Client, ConnectError, Error, Event, FailureCode, Finish, Refusal, Request};

const LONG: Duration = Duration::from_secs(60);

fn start() -> (tempfile::TempDir, EchoDaemon) {
    let folder = tempfile::tempdir().unwrap();
    let daemon = EchoDaemon::start(folder.path().join("s"), EchoConfig::default());
    (folder, daemon)
}

#[test]
fn an_answer_is_a_stream_of_events() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    let events: Vec<Event> = client.generate(Request::text("tap it")).unwrap().map(Result::unwrap).collect();
    assert!(matches!(events[0], Event::Accepted { queue_position: 0 }));
    assert!(matches!(&events[1], Event::Token(token) if token.text == "tap"));
    assert!(matches!(&events[2], Event::Token(token) if token.text == "it"));
    assert!(matches!(
        &events[3],
        Event::Done { finish: Finish::Stop, stats } if stats.decode_tokens == 2
    ));
    assert_eq!(events.len(), 4);
}

#[test]
fn generations_in_flight_get_their_own_answers_in_any_order() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    let generations: Vec<_> =
        (0..20).map(|n| client.generate(Request::text(format!("answer {n}"))).unwrap()).collect();
    for (n, generation) in generations.into_iter().enumerate().rev() {
        assert_eq!(generation.answer().unwrap().text, format!("answer{n}"));
    }
}

#[test]
fn many_threads_share_a_client() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let client = client.clone();
            scope.spawn(move || {
                for n in 0..50 {
                    let prompt = format!("{thread} {n}");
                    let answer = client.generate(Request::text(prompt)).unwrap().answer();
                    assert_eq!(answer.unwrap().text, format!("{thread}{n}"));
                }
            });
        }
    });
}

#[test]
fn an_answer_nobody_looks_at_does_not_hold_up_another() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    // Several times the response ring.
    let long = client.generate(Request::text("count 200000")).unwrap();
    let short = client.generate(Request::text("short")).unwrap();
    assert_eq!(short.answer().unwrap().text, "short");
    assert_eq!(long.answer().unwrap().tokens.len(), 200_000);
}

#[test]
fn a_cancelled_generation_ends_as_cancelled() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    let mut held = client.generate(Request::text("hold")).unwrap();
    assert!(matches!(held.next_within(LONG).unwrap(), Some(Event::Accepted { .. })));
    assert!(matches!(held.next_within(Duration::from_millis(1)), Err(Error::Timeout { .. })));
    held.canceller().cancel();
    let answer = held.answer().unwrap();
    assert_eq!(answer.finish, Finish::Cancelled);
}

#[test]
fn dropping_a_generation_cancels_it_and_nothing_else() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    let other = client.generate(Request::text("hold")).unwrap();
    drop(client.generate(Request::text("hold")).unwrap());
    client.ping().unwrap();
    other.cancel();
    assert_eq!(other.answer().unwrap().finish, Finish::Cancelled);
}

#[test]
fn a_failure_is_typed_and_says_when_to_retry() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    let error = client.generate(Request::text("fail")).unwrap().answer();
    let error = error.unwrap_err();
    assert!(error.is_retryable());
    assert_eq!(error.retry_after(), Some(Duration::from_millis(5)));
    assert!(matches!(error, Error::Failed { code: FailureCode::QueueFull, .. }));
    client.ping().unwrap();
}

#[test]
fn an_invalid_request_is_not_sent() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    let error = client.generate(Request::text("x").top_p(7.0)).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)));
    assert!(error.to_string().contains("`top_p` is 7"), "{error}");
}

#[test]
fn a_prompt_that_does_not_fit_the_ring_is_refused_here() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    let error = client.generate(Request::text("x".repeat(3 << 20)));
    assert!(matches!(error.unwrap_err(), Error::TooLarge(_)));
    client.ping().unwrap();
}

#[test]
fn a_daemon_that_dies_fails_what_is_in_flight_and_is_found_again() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    let held = client.generate(Request::text("hold")).unwrap();
    let dying = client.generate(Request::text("die")).unwrap();
    for generation in [held, dying] {
        let error = generation.answer().unwrap_err();
        assert!(matches!(error, Error::DaemonGone), "{error}");
        assert!(error.is_retryable());
    }
    // The echo daemon dropped the connection, not its socket.
    assert_eq!(client.generate(Request::text("back")).unwrap().answer().unwrap().text, "back");
}

#[test]
fn a_restarted_daemon_is_found_again() {
    let (folder, daemon) = start();
    let client = Client::builder(&daemon.path).reconnect_within(LONG).connect().unwrap();
    client.ping().unwrap();
    let path = daemon.path.clone();
    drop(daemon);
    let restarting = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        EchoDaemon::start(path, EchoConfig::default())
    });
    // The goodbye may still be on its way to the reader.
    while client.is_connected() {
        std::thread::yield_now();
    }
    client.ping().unwrap();
    drop(restarting.join().unwrap());
    drop(folder);
}

#[test]
fn no_daemon_at_all_is_an_error_after_the_time_allowed() {
    let (_folder, daemon) = start();
    let client = Client::builder(&daemon.path).reconnect_within(Duration::from_millis(50)).connect().unwrap();
    drop(daemon);
    while client.is_connected() {
        std::thread::yield_now();
    }
    match client.ping() {
        Err(Error::Connect(error @ ConnectError::NoDaemon { .. })) => {
            assert!(error.to_string().contains("start tandemd"));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_refusal_reaches_the_caller() {
    let folder = tempfile::tempdir().unwrap();
    let config = EchoConfig { limit: 1, ..EchoConfig::default() };
    let daemon = EchoDaemon::start(folder.path().join("s"), config);
    let first = Client::connect(&daemon.path).unwrap();
    first.ping().unwrap();
    let error = Client::connect(&daemon.path).unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_millis(5)));
    assert!(matches!(
        error,
        Error::Connect(ConnectError::Refused { refusal: Refusal::Quota { limit: 1, .. }, .. })
    ));
}

#[test]
fn status_is_json() {
    let (_folder, daemon) = start();
    let client = Client::connect(&daemon.path).unwrap();
    assert_eq!(client.status().unwrap()["device"], "echo");
}

#[test]
fn logits_wider_than_a_message_come_back_whole() {
    let folder = tempfile::tempdir().unwrap();
    let config = EchoConfig { vocabulary: 248_320, ..EchoConfig::default() };
    let daemon = EchoDaemon::start(folder.path().join("s"), config);
    let client = Client::connect(&daemon.path).unwrap();
    let rows = client.logits(vec![vec![1, 2, 3], vec![4], vec![5, 6]], false).unwrap();
    let places: Vec<_> = rows.iter().map(|row| (row.prompt, row.position)).collect();
    assert_eq!(places, [(0, 2), (1, 0), (2, 1)]);
    for row in rows {
        assert_eq!(row.values.len(), 248_320);
        assert_eq!(row.values[248_319], (248_319 + row.prompt) as f32);
    }
}

#[test]
fn the_daemon_sees_the_apps_name() {
    let (_folder, daemon) = start();
    let _client = Client::builder(&daemon.path).app("com.example.agent").connect().unwrap();
    daemon.wait_for(|seen| matches!(seen, Seen::Connected { app, .. } if app == "com.example.agent"));
}

#[cfg(feature = "async")]
mod polled {
    use super::*;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake, Waker};

    struct Unpark(std::thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut future = std::pin::pin!(future);
        loop {
            match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(value) => return value,
                Poll::Pending => std::thread::park(),
            }
        }
    }

    #[test]
    fn an_answer_can_be_awaited() {
        let (_folder, daemon) = start();
        let client = Client::connect(&daemon.path).unwrap();
        let mut generation = client.generate(Request::text("count 1000")).unwrap();
        let tokens = block_on(async {
            let mut tokens = 0;
            while let Some(event) = generation.next_event().await {
                tokens += u32::from(matches!(event.unwrap(), Event::Token(_)));
            }
            tokens
        });
        assert_eq!(tokens, 1000);
    }

    #[test]
    fn a_daemon_that_dies_wakes_the_waiter() {
        let (_folder, daemon) = start();
        let client = Client::connect(&daemon.path).unwrap();
        let mut held = client.generate(Request::text("hold")).unwrap();
        let _dying = client.generate(Request::text("die")).unwrap();
        let last = block_on(async {
            loop {
                match held.next_event().await {
                    Some(Ok(_)) => {}
                    other => break other,
                }
            }
        });
        assert!(matches!(last, Some(Err(Error::DaemonGone))));
        assert!(block_on(held.next_event()).is_none());
    }
}
