// Runs a handler against the AWS Lambda Runtime API, with Node.js alone.
//
// Usage: landfast_runtime.mjs MODULE.FUNCTION
//
// If the code has aws-lambda-ric, that runs instead, as in the cloud.

import { existsSync } from "node:fs";
import http from "node:http";
import path from "node:path";
import { pathToFileURL } from "node:url";

const api = process.env.AWS_LAMBDA_RUNTIME_API;
const root = process.env.LAMBDA_TASK_ROOT;
const prefix = "/2018-06-01/runtime/";
const [host, port] = api.split(":");
const keptAlive = new http.Agent({ keepAlive: true, maxSockets: 1 });

// The id of the present or last request.
let requestId = "";
// The path for an error that ends the process; none between invocations.
let failurePath = "init/error";
// The unfinished work, and its outcome if nothing is left that could finish it.
let going = { whenIdle: () => end(failure(neverSettled("module")), 13) };

function exchange(method, name, body, headers = {}, agent = keptAlive) {
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

function failure(error) {
  const isError = error instanceof Error;
  return {
    errorType: isError ? String(error.name) : error === null ? "null" : typeof error,
    errorMessage: text(isError ? error.message : error),
    requestId,
    trace: isError && error.stack ? String(error.stack).split("\n") : [],
  };
}

// Anything can be thrown, even values without text.
function text(thrown) {
  try {
    return String(thrown);
  } catch {
    return "what was thrown has no text";
  }
}

function postFailure(path, said, agent) {
  // A header allows no other characters.
  const kind = said.errorType.replace(/[^\x20-\x7e]/g, "?");
  return exchange("POST", path, JSON.stringify(said), { "Lambda-Runtime-Function-Error-Type": kind }, agent);
}

// Ends the process as Lambda does after an uncaught exception. The caller gets the error.
async function end(said, status) {
  const path = failurePath;
  failurePath = undefined;
  // Uses its own connection, because the other one may be busy.
  if (path !== undefined) await postFailure(path, said, false).catch(() => {});
  process.exit(status);
}

async function load(name) {
  const dot = name.lastIndexOf(".");
  if (dot <= 0) throw fault("Runtime.MalformedHandlerName", `Bad handler ${JSON.stringify(name)}: it is to be module.function`);
  const [module, property] = [name.slice(0, dot), name.slice(dot + 1)];
  const file = [".mjs", ".js", ".cjs"].map((ending) => path.join(root, module + ending)).find(existsSync);
  if (!file) throw fault("Runtime.ImportModuleError", `Cannot find module '${module}' in the code`);
  const loaded = await import(pathToFileURL(file));
  const handler = loaded[property] ?? loaded.default?.[property];
  if (typeof handler !== "function") throw fault("Runtime.HandlerNotFound", `${name} is not a function`);
  return handler;
}

function contextOf(headers, done) {
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
    done,
    succeed: (result) => done(null, result),
    fail: (error) => done(error ?? "fail was called"),
  };
}

// The result of an invocation: the first of its callback, its context and the handler's promise; null if nothing is left that
// could give one.
function run(handler, event, headers) {
  return new Promise((resolve, reject) => {
    const own = { whenIdle: () => resolve(null) };
    let isSaid = false;
    const once = (take) => (said) => {
      if (isSaid) return;
      isSaid = true;
      take(said);
    };
    const first = (take) => (error, result) => (error ?? null) === null ? once(take)(result) : once(reject)(error);
    const context = contextOf(headers, first(resolve));
    const { succeed } = context;
    const callback = first((result) => {
      if (context.callbackWaitsForEmptyEventLoop) own.whenIdle = () => resolve(result);
      else resolve(result);
    });
    going = own;
    const returned = handler(event, context, callback);
    if (typeof returned?.then === "function") {
      if (!isSaid) own.whenIdle = () => reject(neverSettled("handler"));
      // Unlike a callback's error, where null means success: any thrown value fails the invocation.
      returned.then(succeed, once(reject));
    } else if (handler.length < 3 && returned !== undefined) succeed(returned);
  });
}

// A failure with a name in Lambda.
function fault(name, message) {
  return Object.assign(new Error(message), { name });
}

function neverSettled(whose) {
  const message = `the ${whose}'s promise was never settled, and nothing is left that could settle it`;
  return fault("Runtime.NodeJsExit", message);
}

async function serve(handler) {
  for (;;) {
    const { headers, body } = await exchange("GET", "invocation/next");
    requestId = headers["lambda-runtime-aws-request-id"];
    failurePath = `invocation/${requestId}/error`;
    let answer;
    let failed;
    try {
      const result = await run(handler, body === "" ? undefined : JSON.parse(body), headers);
      answer = JSON.stringify(result) ?? "null";
    } catch (error) {
      console.error("ERROR\tInvoke Error", error);
      failed = failure(error);
    }
    going = failurePath = undefined;
    if (failed) await postFailure(`invocation/${requestId}/error`, failed);
    else await exchange("POST", `invocation/${requestId}/response`, answer);
  }
}

// Not awaited at the top level: with an idle loop, Node.js would end a program that still waits there.
async function main(name) {
  process.on("beforeExit", () => {
    const ending = going;
    going = undefined;
    if (ending) setImmediate(ending.whenIdle);
  });
  process.on("uncaughtException", (error) => {
    console.error("ERROR\tUncaught Exception", error);
    end(failure(error), 129);
  });
  process.on("unhandledRejection", (reason) => {
    console.error("ERROR\tUnhandled Promise Rejection", reason);
    const said = { ...failure(reason), errorType: "Runtime.UnhandledPromiseRejection", errorMessage: text(reason) };
    end(said, 128);
  });
  let handler;
  try {
    handler = await load(name);
  } catch (error) {
    console.error(error);
    const said = failure(error);
    if (error instanceof SyntaxError) said.errorType = "Runtime.UserCodeSyntaxError";
    if (["MODULE_NOT_FOUND", "ERR_MODULE_NOT_FOUND"].includes(error?.code)) said.errorType = "Runtime.ImportModuleError";
    return end(said, 1);
  }
  // The end of the connection ends the instance.
  await serve(handler).catch(() => process.exit(0));
}

const name = process.argv[2];
process.env.AWS_EXECUTION_ENV ??= `AWS_Lambda_nodejs${process.versions.node.split(".")[0]}.x`;
// Since version 3 it is in dist.
const ric = ["dist", "lib"]
  .map((folder) => path.join(root, "node_modules/aws-lambda-ric", folder, "index.mjs"))
  .find((file) => existsSync(file));
if (process.env.LANDFAST_RUNTIME_CLIENT !== "landfast" && ric) {
  const { run: runRic } = await import(pathToFileURL(ric));
  await runRic(root, name);
} else {
  main(name);
}
