//! Functions with the volume of a target, whose invocations are transactions on it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};

use crate::server::fresh;

/// The server of a target that runs functions.
#[derive(Debug, Clone)]
pub struct Server {
    /// Our program.
    pub program: PathBuf,
    /// The address of its HTTP API.
    pub url: String,
    /// Its data directory.
    pub data: PathBuf,
}

/// The volume on Landfast.
pub const VOLUME: &str = "bench";
/// The directory of the volume, as functions see it.
pub const AT: &str = "/mnt/data";

impl Server {
    /// Deploys `functions`, each with the lines of its runtime. Its code is the file `code`.
    /// `folder` is emptied first.
    pub fn deploy(&self, folder: &Path, code: &Path, functions: &[(String, String)]) -> Result<()> {
        let files = fresh(&fresh(folder)?.join("code"))?;
        let name = code.file_name().context("the code has no name")?;
        fs::copy(code, files.join(name)).with_context(|| code.display().to_string())?;
        let volumes = format!("volumes = {{ \"{AT}\" = \"{VOLUME}\" }}");
        let tables = functions.iter().map(|(function, lines)| {
            format!("[functions.{function}]\ncode = \"code\"\n{volumes}\n{lines}\n")
        });
        let manifest = format!("name = \"bench\"\n{}", tables.collect::<String>());
        let path = folder.join("app.toml");
        fs::write(&path, manifest)?;
        let mut deploy = Command::new(&self.program);
        deploy.args(["functions", "deploy"]).arg(&path);
        let deployed = deploy.env("LANDFAST_URL", &self.url).output()?;
        ensure!(
            deployed.status.success(),
            "landfast functions deploy: {}",
            String::from_utf8_lossy(&deployed.stderr).trim()
        );
        Ok(())
    }

    /// The URL at which a function is invoked.
    pub fn invocations(&self, function: &str) -> String {
        format!("{}/2015-03-31/functions/{function}/invocations", self.url)
    }
}
