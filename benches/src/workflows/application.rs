//! The measured applications, and their deployment to a server.

use std::{
    fmt::Write as _,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use super::single_function::Protocol;

/// The Python code of the functions, equivalent to `bench-function`.
pub(super) const PYTHON: &str = r#"
import os
import time

def handler(event, context):
    pause_ms = int(os.environ.get("PAUSE_MS", event.get("pause_ms", 0)))
    if pause_ms:
        time.sleep(pause_ms / 1000)
    if "bytes" in event:
        import landfast
        landfast.state().put("bench-" + context.aws_request_id, b"x" * event["bytes"])
    return event
"#;
/// The steps of the workflow in the paper's table 5.1, and the computing time of each there: the
/// times of external synchrony without the barrier.
const GRADING: [(&str, u64); 3] = [("go_grader", 1_499), ("grades", 2), ("generate_report", 2)];

/// The languages of the functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// `bench-function`.
    Rust,
    /// The machine's `python3`, with the client that is bundled with the program.
    Python,
}

impl Language {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Rust, Self::Python];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Python => "python",
        }
    }

    fn function(self, name: &str, concurrency: usize, variable: Option<(&str, u64)>) -> String {
        let (runtime, handler) = match self {
            Self::Rust => ("executable", "bench-function"),
            Self::Python => ("python3", "app.handler"),
        };
        let mut table = format!(
            "[functions.{name}]\nruntime = \"{runtime}\"\ncode = \"code\"\nhandler = \"{handler}\"\nconcurrency = {concurrency}\n"
        );
        if let Some((variable, value)) = variable {
            let _ = writeln!(table, "environment = {{ {variable} = \"{value}\" }}");
        }
        table
    }
}

/// The sources and the target of a deployment.
#[derive(Debug, Clone)]
pub struct Deployer<'a> {
    /// The program.
    pub landfast: &'a Path,
    /// `bench-function`.
    pub function: &'a Path,
    /// The directory below which applications are put together.
    pub directory: PathBuf,
    /// The HTTP address of the server.
    pub address: SocketAddr,
}

impl Deployer<'_> {
    /// Workflows `NAME-LANGUAGE` of four steps, near or over `far`, with a bound on concurrent
    /// instances.
    pub fn four_steps(
        &self,
        name: &str,
        far: Option<(SocketAddr, Protocol)>,
        concurrency: usize,
    ) -> Result<()> {
        let mut manifest = format!("name = \"{name}\"\n");
        for language in Language::ALL {
            let function = format!("{name}-{}", language.name());
            manifest += &language.function(&function, concurrency, None);
            let steps = vec![format!("\"{function}\""); 4].join(", ");
            let _ = write!(
                manifest,
                "[workflows.{function}]\nsteps = [{steps}]\n{}",
                far_lines(far)
            );
        }
        self.deploy(name, &manifest)
    }

    /// The workflow of table 5.1, as `NAME`: three functions that compute and write.
    pub fn grading(&self, name: &str, far: (SocketAddr, Protocol)) -> Result<()> {
        let mut manifest = format!("name = \"{name}\"\n");
        for (step, pause_ms) in GRADING {
            manifest += &Language::Rust.function(
                &format!("{name}-{step}"),
                1,
                Some(("PAUSE_MS", pause_ms)),
            );
        }
        let steps = GRADING
            .map(|(step, _)| format!("\"{name}-{step}\""))
            .join(", ");
        let _ = write!(
            manifest,
            "[workflows.{name}]\nsteps = [{steps}]\n{}",
            far_lines(Some(far))
        );
        self.deploy(name, &manifest)
    }

    /// `count` functions `NAME-0`, `NAME-1`, ...
    pub fn many(&self, name: &str, language: Language, count: usize) -> Result<()> {
        self.many_with(name, language, count, None)
    }

    /// The same, but each function starts the ordinary way even if a pre-warmed interpreter is
    /// ready.
    pub fn many_without_spares(&self, name: &str, language: Language, count: usize) -> Result<()> {
        self.many_with(name, language, count, Some(("LANDFAST_SPARE", 0)))
    }

    fn many_with(
        &self,
        name: &str,
        language: Language,
        count: usize,
        variable: Option<(&str, u64)>,
    ) -> Result<()> {
        let mut manifest = format!("name = \"{name}\"\n");
        for number in 0..count {
            manifest += &language.function(&format!("{name}-{number}"), 1, variable);
        }
        self.deploy(name, &manifest)
    }

    fn deploy(&self, name: &str, manifest: &str) -> Result<()> {
        let folder = self.directory.join("applications").join(name);
        fs::create_dir_all(folder.join("code"))?;
        fs::write(folder.join("code/app.py"), PYTHON)?;
        fs::copy(self.function, folder.join("code/bench-function"))
            .context("copy bench-function")?;
        let file = folder.join("application.toml");
        fs::write(&file, manifest)?;
        let deployed = Command::new(self.landfast)
            .args(["functions", "deploy"])
            .arg(&file)
            .env("LANDFAST_URL", format!("http://{}", self.address))
            .output()?;
        ensure!(
            deployed.status.success(),
            "deploy {name}: {}",
            String::from_utf8_lossy(&deployed.stderr)
        );
        Ok(())
    }
}

fn far_lines(far: Option<(SocketAddr, Protocol)>) -> String {
    far.map(|(address, protocol)| {
        format!(
            "far = \"redis://{address}\"\nsynchrony = \"{}\"\n",
            protocol.name()
        )
    })
    .unwrap_or_default()
}
