#!/bin/bash
cd /workspace || exit 1
mv postcard.txt essay.txt
