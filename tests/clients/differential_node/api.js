exports.api = { handler: async () => 1, nothing: undefined, text: "text", self() { return Promise.resolve(this === exports.api); } };
exports.text = "no function";
