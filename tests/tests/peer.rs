//! `tandem replay --url`: the same trace on another server, which here is a socket that
//! answers like one.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use tandem_tests::{Finished, Trace, demo_trace, tandem};

/// Answers as many requests as there are answers, and gives back the bodies that came.
fn server(answers: Vec<(&'static str, Value)>) -> (String, JoinHandle<Vec<Value>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let thread = std::thread::spawn(move || {
        let mut bodies = Vec::new();
        for (status, answer) in answers {
            let (mut connection, _) = listener.accept().unwrap();
            let mut reader = BufReader::new(connection.try_clone().unwrap());
            let mut length = 0;
            loop {
                let mut line = String::new();
                reader.read_line(&mut line).unwrap();
                let line = line.trim_end().to_ascii_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            bodies.push(serde_json::from_slice(&body).unwrap());
            let text = answer.to_string();
            let head =
                format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", text.len());
            connection.write_all((head + &text).as_bytes()).unwrap();
        }
        bodies
    });
    (url, thread)
}

fn replay(url: &str, limit: &str) -> Finished {
    let trace = demo_trace();
    tandem(["replay", trace.to_str().unwrap(), "--json", "--limit", limit, "--url", url])
}

#[test]
fn what_another_server_tells_is_reported_and_the_rest_is_null() {
    let trace = Trace::read(&demo_trace());
    let answer = |text: &Value| {
        json!({
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 250, "completion_tokens": 9},
            "timings": {"cache_n": 100, "prompt_n": 150, "prompt_ms": 3.5, "predicted_ms": 1.5}
        })
    };
    let answers =
        vec![("200 OK", answer(&trace.requests[0]["expect"])), ("200 OK", answer(&json!("something else")))];
    let (url, thread) = server(answers);
    let report = replay(&url, "2").json();
    let steps = report["steps"].as_array().unwrap();
    assert_eq!((&steps[0]["expected"], &steps[0]["valid"]), (&json!(true), &json!(true)));
    assert_eq!((&steps[1]["expected"], &steps[1]["valid"]), (&json!(false), &json!(false)));
    assert_eq!(
        (&steps[0]["prompt"], &steps[0]["restored"], &steps[0]["new"]),
        (&json!(250), &json!(100), &json!(150))
    );
    assert!(
        steps[0]["passes"].is_null() && report["kv_bound"].is_null() && report["mean"]["saves"].is_null()
    );
    assert_eq!(report["mean"]["prefill_ms"], 3.5);
    for (body, recorded) in thread.join().unwrap().iter().zip(&trace.requests) {
        assert_eq!(body["messages"], recorded["request"]["messages"]);
        assert_eq!(body["response_format"], recorded["request"]["response_format"]);
        assert_eq!(
            (&body["stream"], &body["chat_template_kwargs"]["enable_thinking"]),
            (&json!(false), &json!(false))
        );
    }
}

#[test]
fn a_servers_refusal_is_shown_with_the_line_of_the_trace() {
    let (url, thread) = server(vec![("400 Bad Request", json!({"error": {"message": "schema too deep"}}))]);
    replay(&url, "1").failed(1, &["line 1", "400", "schema too deep"]);
    thread.join().unwrap();
}

#[test]
fn options_of_the_daemon_do_not_go_with_another_server() {
    let trace = demo_trace();
    let replay = ["replay", trace.to_str().unwrap(), "--url", "http://127.0.0.1:1"];
    tandem([&replay[..], &["--threads", "2"]].concat()).failed(2, &["--url"]);
    tandem([&replay[..], &["--force-expected"]].concat()).failed(2, &["--url", "--force-expected"]);
    tandem(["replay", trace.to_str().unwrap(), "--url", "https://x"]).failed(2, &["http://"]);
}
