//! Restate as the peer: its server, and a service of four steps written with its Python kit.

use std::{
    fs::{self, File},
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use super::runs::Request;
use crate::{
    http::Connection,
    server::{self, Process},
};

/// Four steps with results of 1 KiB, which Restate keeps.
const SERVICE: &str = r#"
import restate

four = restate.Service("four")

def step():
    return "x" * 1024

@four.handler()
async def run(ctx: restate.Context, event: dict) -> dict:
    for number in range(4):
        await ctx.run(f"step{number}", step)
    return event

app = restate.app([four])
"#;
const START_MAX: Duration = Duration::from_mins(1);

/// Its server, and the service.
#[derive(Debug)]
pub struct Restate {
    /// The server.
    pub process: Process,
    /// The address that begins runs.
    pub ingress: SocketAddr,
    service: Service,
}

#[derive(Debug)]
struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Restate {
    /// Starts both from `peer`, where they are installed, with data below `directory`.
    pub async fn start(peer: &Path, directory: &Path) -> Result<Self> {
        let folder = server::fresh(&directory.join("restate"))?;
        let (ingress, admin) = (server::free_address()?, server::free_address()?);
        let (node, service_address) = (server::free_address()?, server::free_address()?);
        fs::write(folder.join("app.py"), SERVICE)?;
        // The service runs in another working directory than ours.
        let peer = peer.canonicalize()?;
        let service = Command::new(peer.join("venv/bin/hypercorn"))
            // Everything runs in this one process, so that stopping it stops everything.
            .args([
                "--workers",
                "0",
                "--bind",
                &service_address.to_string(),
                "app:app",
            ])
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(File::create(folder.join("service.log"))?)
            .stderr(Stdio::null())
            .spawn()
            .context("starting the service with hypercorn")?;
        let service = Service(service);
        let program =
            peer.join("node_modules/@restatedev/restate-server-linux-x64/bin/restate-server");
        let mut command = Command::new(program);
        command
            .args([
                "--node-name",
                "bench",
                "--cluster-name",
                "bench",
                "--auto-provision",
                "true",
                "--base-dir",
            ])
            .arg(folder.join("data"))
            .env("RESTATE_DISABLE_TELEMETRY", "true")
            .env("DO_NOT_TRACK", "1")
            .env("RESTATE_ADMIN__BIND_ADDRESS", admin.to_string())
            .env("RESTATE_INGRESS__BIND_ADDRESS", ingress.to_string())
            .env("RESTATE_BIND_ADDRESS", node.to_string())
            .env("RESTATE_ADVERTISED_ADDRESS", format!("http://{node}/"));
        let process = Process::peer("Restate", command, admin, &folder.join("server.log")).await?;
        let restate = Self {
            process,
            ingress,
            service,
        };
        restate.register(admin, service_address).await?;
        Ok(restate)
    }

    /// The request that begins a run and waits for its end.
    pub fn request() -> Request {
        Request {
            path: "/four/run".to_owned(),
            body: "{}".to_owned(),
            good: "{",
        }
    }

    /// Stops both.
    pub async fn stop(self) -> Result<()> {
        drop(self.service);
        self.process.stop().await
    }

    async fn register(&self, admin: SocketAddr, service: SocketAddr) -> Result<()> {
        let began = Instant::now();
        let body = format!("{{\"uri\":\"http://{service}\"}}");
        loop {
            let connection = Connection::to(admin);
            let headers = [("Content-Type", "application/json")];
            match connection
                .ask("POST", "/deployments", &headers, body.as_bytes())
                .await
            {
                Ok((201, _)) => return Ok(()),
                answer => ensure!(
                    began.elapsed() < START_MAX,
                    "Restate takes no service: {answer:?}"
                ),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
