//! A server that speaks S3.

use std::{
    env,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, SystemTime},
};

use http::{Method, Uri};
use object_store::{aws::AmazonS3Builder, path::Path, signer::Signer as _};
use s3_objects::{Config, Keys};
use tempfile::TempDir;

const ACCESS_KEY: &str = "landfast-test";
const SECRET_KEY: &str = "a secret of these tests alone";
const VALID: Duration = Duration::from_mins(1);

pub(crate) struct Server {
    pub(crate) url: String,
    keys: (String, String),
    /// Of our own server.
    child: Option<(Child, TempDir)>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((child, _)) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn program() -> PathBuf {
    if let Some(program) = env::var_os("LANDFAST_BIN") {
        return program.into();
    }
    let test = env::current_exe().expect("the path of this test");
    let folder = test.parent().and_then(|deps| deps.parent());
    folder.expect("the target directory").join("landfast")
}

/// A folder that no other test uses, also on a server that lives longer.
pub(crate) fn prefix() -> String {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    format!("test-{}", now.expect("after 1970").as_nanos())
}

impl Server {
    pub(crate) fn start() -> Self {
        if let Ok(url) = env::var("LANDFAST_TEST_S3") {
            let key = |name| env::var(name).expect(name);
            let keys = (key("AWS_ACCESS_KEY_ID"), key("AWS_SECRET_ACCESS_KEY"));
            return Self {
                url,
                keys,
                child: None,
            };
        }
        let program = program();
        assert!(
            program.exists(),
            "{} is missing: build it with `cargo build`, or name it with LANDFAST_BIN",
            program.display()
        );
        let folder = tempfile::tempdir().expect("a folder");
        let mut child = Command::new(program)
            .args(["serve", "--data-dir"])
            .arg(folder.path())
            .args(["--zookeeper", "off", "--http", "off", "--routes", "off"])
            .args(["--s3", "127.0.0.1:0"])
            .env("LANDFAST_S3_ACCESS_KEY", ACCESS_KEY)
            .env("LANDFAST_S3_SECRET_KEY", SECRET_KEY)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let address = output.lines().find_map(|line| {
            let line = line.expect("text");
            let words = line.split_whitespace().map(str::to_owned);
            let mut found = words.filter_map(|word| word.strip_prefix("s3=").map(str::to_owned));
            found.next()
        });
        Self {
            url: format!("http://{}", address.expect("it is ready")),
            keys: (ACCESS_KEY.to_owned(), SECRET_KEY.to_owned()),
            child: Some((child, folder)),
        }
    }

    pub(crate) fn keys(&self) -> Keys {
        let variable = |name: &str| match name {
            "AWS_ACCESS_KEY_ID" => Some(self.keys.0.clone()),
            "AWS_SECRET_ACCESS_KEY" => Some(self.keys.1.clone()),
            _ => None,
        };
        Keys::from_environment(variable).expect("both are there")
    }

    /// The client of `object_store` makes no buckets, but signs the request.
    pub(crate) async fn create_bucket(&self, bucket: &str) {
        // It installs the cryptography that the client below needs, too.
        let url = format!("s3://{bucket}?endpoint={}", self.url);
        let config = Config::from_url(&url).expect("it is right");
        s3_objects::open(&config, &self.keys()).expect("a client");
        let signer = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_endpoint(&self.url)
            .with_allow_http(true)
            .with_access_key_id(&self.keys.0)
            .with_secret_access_key(&self.keys.1)
            .build()
            .expect("a client");
        let url = signer.signed_url(Method::PUT, &Path::from(""), VALID).await;
        let url: Uri = url.expect("signed").as_str().parse().expect("a URL");
        let authority = url.authority().expect("an address").as_str();
        let mut stream = TcpStream::connect(authority).expect("it accepts");
        let target = url.path_and_query().expect("a path");
        write!(
            stream,
            "PUT {target} HTTP/1.1\r\nHost: {authority}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        )
        .expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        let status = answer.split_whitespace().nth(1).unwrap_or_default();
        let is_there = answer.contains("BucketAlreadyOwnedByYou");
        assert!(status == "200" || is_there, "{answer}");
    }
}
