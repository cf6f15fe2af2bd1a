export const handler = async () => "a module without its type";
