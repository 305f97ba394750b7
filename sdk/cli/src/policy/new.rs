//! `tandem policy new`.

use super::usage;
use crate::failure::Failure;
use std::io::Write;
use std::path::PathBuf;

/// Writes a working policy crate.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The crate's name: small letters, digits and '-'.
    name: String,
    /// Where to put it; by default a folder of its name.
    #[arg(long, value_name = "FOLDER")]
    path: Option<PathBuf>,
}

pub(crate) fn run(args: &Args, out: &mut dyn Write) -> Result<(), Failure> {
    let folder = args.path.clone().unwrap_or_else(|| PathBuf::from(&args.name));
    tandem_lab::scaffold::scaffold(&args.name, &folder).map_err(usage)?;
    let (name, folder) = (&args.name, folder.display());
    writeln!(out, "Made {folder}. The policy is {folder}/src/lib.rs. Next:")?;
    writeln!(out, "  tandem policy build {folder}")?;
    writeln!(out, "  tandem policy check {folder}/{name}.wasm")?;
    writeln!(
        out,
        "  tandem policy simulate TRACE.jsonl --tokenizer MODEL.gguf --policy {folder}/{name}.wasm"
    )?;
    Ok(())
}
