// Runs a handler against the AWS Lambda Runtime API, with Node.js alone.
//
// Usage: landfast_runtime.mjs MODULE.FUNCTION
//
// Where the code brings aws-lambda-ric, that is used instead: it is what the cloud runs.

import { existsSync } from "node:fs";
import http from "node:http";
import path from "node:path";
import { pathToFileURL } from "node:url";

const api = process.env.AWS_LAMBDA_RUNTIME_API;
const root = process.env.LAMBDA_TASK_ROOT;
const prefix = "/2018-06-01/runtime/";
const [host, port] = api.split(":");
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function exchange(method, name, body, headers = {}) {
  return new Promise((resolve, reject) => {
    const length = body === undefined ? {} : { "Content-Length": Buffer.byteLength(body) };
    const options = { host, port, agent, method, path: prefix + name, headers: { ...length, ...headers } };
    const request = http.request(options, (response) => {
      const chunks = [];
      response.on("data", (chunk) => chunks.push(chunk));
      response.on("end", () => resolve({ headers: response.headers, body: Buffer.concat(chunks).toString() }));
      response.on("error", reject);
    });
    request.setNoDelay(true);
    request.on("error", reject);
    request.end(body);
  });
}

function failure(error, requestId) {
  const isError = error instanceof Error;
  return {
    errorType: isError ? error.name : typeof error,
    errorMessage: isError ? error.message : String(error),
    requestId,
    trace: isError && error.stack ? error.stack.split("\n") : [],
  };
}

async function load(name) {
  const dot = name.lastIndexOf(".");
  if (dot <= 0) throw new Error(`the handler ${JSON.stringify(name)} is not of the form module.function`);
  const [module, property] = [name.slice(0, dot), name.slice(dot + 1)];
  const file = [".mjs", ".js", ".cjs"].map((ending) => path.join(root, module + ending)).find(existsSync);
  if (!file) throw new Error(`Cannot find module '${module}' in the code`);
  const loaded = await import(pathToFileURL(file));
  const handler = loaded[property] ?? loaded.default?.[property];
  if (typeof handler !== "function") throw new Error(`${name} is not a function`);
  return handler;
}

function contextOf(headers, callback) {
  const deadline = Number(headers["lambda-runtime-deadline-ms"]);
  const clientContext = headers["lambda-runtime-client-context"];
  return {
    awsRequestId: headers["lambda-runtime-aws-request-id"],
    invokedFunctionArn: headers["lambda-runtime-invoked-function-arn"],
    functionName: process.env.AWS_LAMBDA_FUNCTION_NAME,
    functionVersion: process.env.AWS_LAMBDA_FUNCTION_VERSION,
    memoryLimitInMB: process.env.AWS_LAMBDA_FUNCTION_MEMORY_SIZE,
    logGroupName: process.env.AWS_LAMBDA_LOG_GROUP_NAME,
    logStreamName: process.env.AWS_LAMBDA_LOG_STREAM_NAME,
    clientContext: clientContext ? JSON.parse(clientContext) : undefined,
    callbackWaitsForEmptyEventLoop: true,
    getRemainingTimeInMillis: () => Math.max(0, deadline - Date.now()),
    done: callback,
    succeed: (result) => callback(null, result),
    fail: (error) => callback(error ?? new Error("fail was called")),
  };
}

function run(handler, event, headers) {
  return new Promise((resolve, reject) => {
    const callback = (error, result) => (error ? reject(error) : resolve(result));
    const returned = handler(event, contextOf(headers, callback), callback);
    if (typeof returned?.then === "function") returned.then(resolve, reject);
    else if (handler.length < 3 && returned !== undefined) resolve(returned);
  });
}

async function serve(handler) {
  for (;;) {
    const { headers, body } = await exchange("GET", "invocation/next");
    const id = headers["lambda-runtime-aws-request-id"];
    let answer;
    try {
      const result = await run(handler, body === "" ? undefined : JSON.parse(body), headers);
      answer = JSON.stringify(result === undefined ? null : result);
    } catch (error) {
      console.error("ERROR\tInvoke Error", error);
      const said = failure(error, id);
      const kind = { "Lambda-Runtime-Function-Error-Type": said.errorType };
      await exchange("POST", `invocation/${id}/error`, JSON.stringify(said), kind);
      continue;
    }
    await exchange("POST", `invocation/${id}/response`, answer);
  }
}

const name = process.argv[2];
// Since its third version it lies in dist.
const ric = ["dist", "lib"]
  .map((folder) => path.join(root, "node_modules/aws-lambda-ric", folder, "index.mjs"))
  .find((file) => existsSync(file));
if (process.env.LANDFAST_RUNTIME_CLIENT !== "landfast" && ric) {
  const { run: runRic } = await import(pathToFileURL(ric));
  await runRic(root, name);
} else {
  let handler;
  try {
    handler = await load(name);
  } catch (error) {
    console.error(error);
    const said = { ...failure(error, ""), errorType: "Runtime.ImportModuleError" };
    const kind = { "Lambda-Runtime-Function-Error-Type": said.errorType };
    await exchange("POST", "init/error", JSON.stringify(said), kind);
    process.exit(1);
  }
  // Who ends the connection ends the instance.
  await serve(handler).catch(() => process.exit(0));
}
