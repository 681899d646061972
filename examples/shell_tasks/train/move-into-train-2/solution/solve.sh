#!/bin/bash
cd /workspace || exit 1
mv poem.txt images/
