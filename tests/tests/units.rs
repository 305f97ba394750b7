//! What starts and confines the daemon on real systems: systemd units, Android's init and
//! SELinux policy, as far as tools on a Linux host can tell.

// The lint knows tests, not what they share.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;
use tandem_tests::{golden, programs, root, tandemd};

fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|e| {
        panic!(
            "{command:?}: {e}; `cargo xtask test` installs what these tests need: systemd, checkpolicy, m4"
        )
    });
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// The units, with the daemon of this build in place of the installed one.
fn units() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    for unit in ["tandemd.service", "tandemd.socket"] {
        let text = std::fs::read_to_string(root().join("init/systemd").join(unit)).unwrap();
        let own = text.replace("/usr/bin/tandemd", programs().tandemd.to_str().unwrap());
        std::fs::write(folder.path().join(unit), own).unwrap();
    }
    let service = folder.path().join("tandemd.service");
    (folder, service)
}

#[test]
fn systemd_finds_nothing_wrong_with_the_units() {
    let (_folder, service) = units();
    // A misspelt key is a warning only, so nothing at all may be said of our files.
    let verify = |service: &Path| {
        let (_, text) = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(service));
        text.lines().filter(|line| line.contains("tandemd")).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(verify(&service), Vec::<String>::new());
    let text = std::fs::read_to_string(&service).unwrap();
    std::fs::write(&service, text.replace("WatchdogSec", "WatchdogSecs")).unwrap();
    assert!(verify(&service).iter().any(|line| line.contains("WatchdogSecs")), "the check sees nothing");
}

#[test]
fn the_service_is_confined() {
    let (_folder, service) = units();
    // The exposure is at most 2.0 of 10.
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=true", "--threshold=20", "--no-pager"]).arg(&service);
    let (good, text) = run(&mut command);
    assert!(good, "{text}");
}

#[test]
fn the_settings_that_are_shipped_can_be_used() {
    let text = std::fs::read_to_string(root().join("init/tandemd.toml")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tandemd.toml");
    let model = golden("qwen35-a");
    let own = text.replace("/usr/share/tandem/model.gguf", model.to_str().unwrap());
    assert_ne!(own, text);
    std::fs::write(&file, own).unwrap();
    let checked = tandemd(["check".as_ref(), "--config".as_ref(), file.as_os_str()]);
    assert_eq!(checked.code, Some(0), "{}", checked.err);
}

#[test]
fn androids_init_file_names_no_unknown_option() {
    let known = [
        "class",
        "user",
        "group",
        "socket",
        "capabilities",
        "task_profiles",
        "oom_score_adjust",
        "rlimit",
        "restart_period",
        "disabled",
        "setenv",
    ];
    let commands = ["start tandemd", "stop tandemd", "mkdir /data/vendor/tandem 0700 system system"];
    let text = std::fs::read_to_string(root().join("init/android/tandemd.rc")).unwrap();
    let mut in_service = false;
    for line in text.lines().filter(|line| !line.trim_start().starts_with('#') && !line.trim().is_empty()) {
        if !line.starts_with(' ') {
            in_service = line.starts_with("service ");
            assert!(in_service || line.starts_with("on "), "{line}");
        } else if in_service {
            let option = line.split_whitespace().next().unwrap();
            assert!(known.contains(&option), "{line}");
        } else {
            assert!(commands.contains(&line.trim()), "{line}");
        }
    }
}

/// Compiles the policy with one more rule.
fn policy(rule: &str) -> (bool, String) {
    let folder = tempfile::tempdir().unwrap();
    let sepolicy = root().join("sepolicy");
    let read = |name: &str| std::fs::read_to_string(sepolicy.join(name)).unwrap();
    let order = ["check/macros.m4", "check/base.conf", "vendor/tandemd.te"];
    let source = order.map(read).concat() + rule + "\n" + &read("check/contexts.conf");
    std::fs::write(folder.path().join("source"), source).unwrap();
    let (expanded, text) = run(Command::new("m4").arg(folder.path().join("source")));
    assert!(expanded, "{text}");
    std::fs::write(folder.path().join("policy.conf"), text).unwrap();
    let mut command = Command::new("checkpolicy");
    command.args(["-M", "-c", "30", "-o"]).arg(folder.path().join("policy"));
    run(command.arg(folder.path().join("policy.conf")))
}

#[test]
fn the_selinux_policy_compiles_and_refuses_what_android_and_we_forbid() {
    let (good, text) = policy("");
    assert!(good, "{text}");
    for rule in [
        "allow untrusted_app tandemd:unix_stream_socket connect;",
        "allow tandemd self:tcp_socket create;",
        "allow tandemd self:capability net_admin;",
        "allow tandemd tandem_model_file:file write;",
        "allow untrusted_app tandem_data_file:file read;",
        "allow untrusted_app tandemd_exec:file write;",
    ] {
        let (good, text) = policy(rule);
        assert!(!good && text.contains("neverallow"), "{rule} was let through: {text}");
    }
}

#[test]
fn every_file_context_names_a_type_of_the_policy() {
    let read = |name: &str| std::fs::read_to_string(root().join("sepolicy").join(name)).unwrap();
    let declared = read("vendor/tandemd.te") + &read("check/base.conf");
    for line in read("vendor/file_contexts").lines() {
        let label = line.split_whitespace().nth(1).unwrap();
        let name = label.split(':').nth(2).unwrap();
        assert!(declared.contains(&format!("type {name},")), "{line}");
    }
}
