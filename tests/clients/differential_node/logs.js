// Output of every kind. `handler` runs the export that the event names.
const own = Object.assign(new RangeError("logged"), { code: "E_LOGGED" });
const logging = (log) => async () => { log(); };

exports.levels = logging(() => {
  for (const level of ["trace", "debug", "info", "log", "warn", "error", "fatal"]) console[level]?.(`by ${level}`);
});
exports.nothing = logging(() => console.log());
exports.values = logging(() => console.log(1, "two", true, null, undefined, 3n, Symbol("four"), () => 5));
exports.objects = logging(() => console.log({ a: [1, { b: { c: { d: 1 } } }], date: new Date(0), map: new Map([[1, 2]]) }));
exports.object = logging(() => console.log({ a: 1, text: "t" }));
exports.string = logging(() => console.info("only a string"));
exports.error = logging(() => console.error(own));
exports.errorWithText = logging(() => console.error("it failed:", own, "after"));
exports.errorInside = logging(() => console.warn({ error: own }));
exports.formats = logging(() => console.log("%s %d %i %f %j %o %O %c %%", "s", 1.5, 1.5, 1.5, { j: 1 }, [1], { a: 1 }, "css", "more"));
exports.percent = logging(() => console.log("100% of it", 1));
exports.lines = logging(() => console.log("first\nsecond\n\nlast"));
exports.multilineObject = logging(() => console.log({ text: "x".repeat(80), other: "y".repeat(80) }));
exports.carriageReturn = logging(() => console.log("before\rafter"));
exports.unicode = logging(() => console.log("ä 😀 \u2028 \x1b[31mred\x1b[0m"));
exports.empty = logging(() => console.log(""));
exports.long = logging(() => console.log("l".repeat(20_000)));
exports.circular = logging(() => { const circle = {}; circle.self = circle; console.log(circle); });
exports.table = logging(() => console.table([{ a: 1, b: 2 }]));
exports.dir = logging(() => console.dir({ a: { b: { c: { d: 1 } } } }, { depth: 0 }));
exports.group = logging(() => { console.group("group"); console.log("inside"); console.groupEnd(); });
exports.count = logging(() => { console.count("counted"); console.count("counted"); });
exports.assert = logging(() => { console.assert(true, "right"); console.assert(false, "wrong"); });
exports.stdout = logging(() => { process.stdout.write("raw "); process.stdout.write("line\n"); });
exports.unfinished = logging(() => process.stdout.write("without an end"));
exports.stderr = logging(() => process.stderr.write("to stderr\n"));
exports.order = logging(() => { for (let n = 0; n < 3; n++) { console.log("log", n); process.stdout.write(`write ${n}\n`); } });
exports.detached = logging(() => { const { log } = console; log("without its console"); });
exports.warning = async () => {
  process.emitWarning("a warning of the process");
  await new Promise((resolve) => setImmediate(resolve));
};
exports.afterAnswer = (event, context, callback) => { callback(null, 1); setTimeout(() => console.log("before the end of the loop"), 5); };

exports.handler = (event, context, callback) => exports[event.case](event.event, context, callback);
