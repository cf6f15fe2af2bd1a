//! The requests of functions at work: to the services of this process, and over S3 to the buckets
//! of their manifests.
//!
//! Both arrive at the one address that an instance has. The signature tells them apart: one for S3
//! names that service. Keys derive from the server's own, so they are stored nowhere, and end with
//! their function.

use std::{
    ffi::OsString,
    sync::{Arc, OnceLock},
};

use async_trait::async_trait;
use http::Method;
use http_body_util::BodyExt;
use http_frontend::InProcessRouter;
use ports::{VolumeMount, runtime::Function};
use s3_frontend::{Credentials, Functions, Grant, InProcess};
use workflows::Error;

use crate::function_volumes;

/// Answers functions.
#[derive(Debug)]
pub(crate) struct FromFunctions {
    pub(crate) inside: InProcessRouter,
    pub(crate) objects: Arc<Objects>,
}

/// S3 for functions. The parts appear as the server starts.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    pub(crate) credentials: Option<Credentials>,
    endpoint: OnceLock<InProcess>,
    deployed: OnceLock<functions::Service>,
    workflows: OnceLock<workflows::Service>,
}

#[async_trait]
impl sandbox::Api for FromFunctions {
    async fn call(
        &self,
        scope: Option<Arc<str>>,
        volume: Option<&dyn VolumeMount>,
        request: http::Request<sandbox::Incoming>,
    ) -> sandbox::Reply {
        if self.objects.credentials.is_some() && InProcess::is_for(&request) {
            return self.objects.call(scope, request).await;
        }
        let volume = volume.and_then(function_volumes::of_invocation);
        let response = self.inside.call(scope, volume, request).await;
        response.map(|body| body.map_err(Into::into).boxed_unsync())
    }

    fn variables(&self, function: &Function) -> Vec<(OsString, OsString)> {
        let own = self.objects.credentials.as_ref();
        let Some(own) = own.filter(|_| !function.buckets.is_empty()) else {
            return Vec::new();
        };
        let keys = own.of_function(&function.name, function.incarnation);
        vec![
            ("AWS_ACCESS_KEY_ID".into(), keys.access_key.into()),
            ("AWS_SECRET_ACCESS_KEY".into(), keys.secret_key.into()),
        ]
    }
}

impl Objects {
    /// With the server's own keys. None: S3 is not served.
    pub(crate) fn new(credentials: Option<Credentials>) -> Arc<Self> {
        Arc::new(Self {
            credentials,
            ..Self::default()
        })
    }

    /// Knows the functions and the steps from now on. Call it once.
    pub(crate) fn provide(&self, deployed: functions::Service, workflows: workflows::Service) {
        self.deployed.set(deployed).expect("provided once");
        self.workflows.set(workflows).expect("provided once");
    }

    /// Serves S3 from now on. Call it once.
    pub(crate) fn serve(&self, endpoint: InProcess) {
        self.endpoint.set(endpoint).expect("served once");
    }

    async fn call(
        &self,
        scope: Option<Arc<str>>,
        request: http::Request<sandbox::Incoming>,
    ) -> sandbox::Reply {
        if InProcess::is_form(&request) {
            let refused = InProcess::refuse("Forms are served to browsers alone.");
            return refused.map(BodyExt::boxed_unsync);
        }
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD);
        let Some(endpoint) = self.endpoint.get() else {
            let refused = InProcess::refuse_for_now("The server is starting.");
            return refused.map(BodyExt::boxed_unsync);
        };
        let durable = match scope.filter(|_| changes) {
            Some(token) => self.make_durable(&token).await,
            None => Ok(()),
        };
        let response = match durable {
            Ok(()) => {
                endpoint
                    .call(request.map(sandbox::Incoming::streamed))
                    .await
            }
            Err(error @ (Error::Invalid(_) | Error::AttemptEnded)) => {
                InProcess::refuse(&error.to_string())
            }
            Err(error) => InProcess::refuse_for_now(&error.to_string()),
        };
        response.map(BodyExt::boxed_unsync)
    }

    /// Waits until all that the run has read and written is durable, before its step changes an
    /// object (rule P5).
    async fn make_durable(&self, token: &Arc<str>) -> workflows::Result<()> {
        match self.workflows.get() {
            Some(workflows) => workflows.externalize(token).await,
            // No step runs before the workflows do.
            None => Ok(()),
        }
    }
}

impl Functions for Objects {
    fn grant(&self, name: &str) -> Option<Grant> {
        let function = self.deployed.get()?.for_runtime(name)?;
        Some(Grant {
            incarnation: function.incarnation,
            buckets: function.buckets.clone(),
        })
    }
}
