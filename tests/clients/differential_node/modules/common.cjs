exports.handler = async () => "in a folder of modules";
