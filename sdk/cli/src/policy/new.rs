//! `tandem policy new`.

use super::usage;
use crate::failure::Failure;
use std::io::Write;
use std::path::PathBuf;
use tandem_lab::scaffold::{Kind, scaffold};

/// Writes a working policy crate.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The crate's name: small letters, digits and '-'.
    name: String,
    /// Where to put it; by default a folder of its name.
    #[arg(long, value_name = "FOLDER")]
    path: Option<PathBuf>,
    /// A power policy: when an idle device lets go of its votes. Else a placement policy.
    #[arg(long)]
    power: bool,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    let kind = if args.power { Kind::Power } else { Kind::Placement };
    scaffold(&args.name, &folder, kind).map_err(usage)?;
    let (name, folder) = (&args.name, folder.display());
    writeln!(out, "Made {folder}. The policy is {folder}/src/lib.rs. Next:")?;
    writeln!(out, "  tandem policy build {folder}")?;
    writeln!(out, "  tandem policy check {folder}/{name}.wasm")?;
    if args.power {
        writeln!(out, "  [power] policy = \"{folder}/{name}.wasm\" in the daemon's settings")?;
        return Ok(());
    }
    writeln!(
        out,
        "  tandem policy simulate TRACE.jsonl --tokenizer MODEL.gguf --policy {folder}/{name}.wasm"
    )?;
    Ok(())
}
